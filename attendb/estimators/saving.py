"""Models on disk: one safetensors file, of which nothing is run when it is read.

Tensors hold what was learned and the cases as the similarity sees them; the columns of the cases, for explanations, are
an Arrow stream as bytes. The header says as JSON what they are.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor

from ..errors import InputError, KindError, StorageError
from ..sources.table_writing import sync
from .cases import Cases
from .encoding import Encoder, Rows
from .members import Member
from .pooling import Memory
from .similarity import similarity_named

if TYPE_CHECKING:
    from .base import AttentionEstimator

FORMAT = 1


def save(model: AttentionEstimator, path: str | os.PathLike[str]) -> None:
    """Write the fitted model; a file of that name is replaced in one step, when the new one is complete."""
    from safetensors.torch import save as as_bytes

    tensors, header = _tensors(model), _header(model)
    data = as_bytes({key: x.detach().cpu().contiguous() for key, x in tensors.items()}, {"attendb": json.dumps(header)})
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
        sync(str(target.parent))
    except OSError as error:
        raise StorageError(f"the model cannot be written to {target} ({error.strerror or error})") from error
    finally:
        with suppress(OSError):
            beside.unlink()


def load(kind: type[AttentionEstimator], path: str | os.PathLike[str]) -> Any:
    """The model that `save` wrote. Raises StorageError for a file that is none, InputError for one of another class."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["attendb"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}
        newer, name = header["format"] > FORMAT, str(header["class"])
    except FileNotFoundError:
        raise StorageError(f"there is no file {os.fspath(path)}") from None
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise StorageError(f"{os.fspath(path)} is no saved model, or damaged ({error}): save it again") from error
    if newer:
        raise StorageError(f"{os.fspath(path)} has a newer format: install a newer attendb")
    if name != kind.__name__:
        raise InputError(f"{os.fspath(path)} holds an {name}: load it by {name}.load")
    try:
        return _remade(kind, header, tensors)
    except (LookupError, RuntimeError, TypeError, AttributeError, ValueError, pa.ArrowException) as error:
        raise StorageError(f"{os.fspath(path)} lacks a part ({error}): save the model again") from error


def _header(model: AttentionEstimator) -> dict[str, Any]:
    parameters = dict(model.get_params())
    if not isinstance(parameters["random_state"], (int, np.integer, type(None))):
        parameters["random_state"] = None  # a generator has moved on since
    if parameters["device"] is not None:
        parameters["device"] = str(parameters["device"])
    return {
        "format": FORMAT,
        "class": type(model).__name__,
        "parameters": {key: plain(x, key) for key, x in parameters.items()},
        "features": model.n_features_in_,
        "names": None if not hasattr(model, "feature_names_in_") else model.feature_names_in_.tolist(),
        "encoder": model.encoder_.state()[0],
        "members": [
            {"config": member.similarity.config(), "sharpness": member.sharpness, "ridge": member.ridge}
            for member in model._members
        ],
        "groups": None if model._groups is None else [plain(name, "groups") for name in model._groups],
        "own": model._own_state(),
    }


def _tensors(model: AttentionEstimator) -> dict[str, Tensor]:
    first = model._members[0]
    out = {"centre": model._centre, "scale": model._scale, "targets": first.targets, "weights": first.memory.weights}
    if first.memory.groups is not None:
        out["groups"] = first.memory.groups
    judges = model._judges
    if isinstance(judges, Tensor):
        out["judges"] = judges
    elif judges is not None:
        rows = judges.rows
        out |= {"judges.numbers": rows.numbers, "judges.codes": rows.codes, "judges.targets": judges.targets}
    for i, member in enumerate(model._members):
        out |= {f"member.{i}.state.{key}": x for key, x in member.similarity.state_dict().items()}
        out[f"member.{i}.keys"] = member.memory.keys
        if member.prior is not None:
            out[f"member.{i}.prior"] = member.prior
    out |= {f"encoder.{key}": x for key, x in model.encoder_.state()[1].items()}
    out["table"] = torch.frombuffer(bytearray(_arrow(model.table_)), dtype=torch.uint8)
    return out


def _remade(kind: type[AttentionEstimator], header: dict[str, Any], tensors: dict[str, Tensor]) -> AttentionEstimator:
    model = kind(**header["parameters"])
    model.n_features_in_ = header["features"]
    if header["names"] is not None:
        model.feature_names_in_ = np.array(header["names"], dtype=object)
    model.encoder_ = Encoder.made(header["encoder"], _under(tensors, "encoder."))
    model._groups = None if header["groups"] is None else {name: i for i, name in enumerate(header["groups"])}
    model._centre, model._scale = tensors["centre"], tensors["scale"]
    model._judges = _judges(tensors, model._classes)
    model._members = []
    for i, about in enumerate(header["members"]):
        similarity = similarity_named(model.similarity).made(about["config"])
        own = _under(tensors, f"member.{i}.")
        similarity.load_state_dict(_under(own, "state."))
        similarity.requires_grad_(False).eval()
        memory = Memory(own["keys"], tensors["weights"], tensors.get("groups"))
        member = Member(similarity, memory, tensors["targets"], own.get("prior"), about["sharpness"], about["ridge"])
        model._members.append(member)
    with pa.ipc.open_stream(pa.py_buffer(tensors["table"].numpy().tobytes())) as reader:
        model.table_ = reader.read_pandas()
    if header["names"] is None:
        model.table_.columns = range(model.table_.shape[1])
    model._set_own_state(header["own"])
    model._forget()
    return model


def _judges(tensors: dict[str, Tensor], classes: bool) -> Tensor | Cases | None:
    own = _under(tensors, "judges.")
    if not own:
        return tensors.get("judges")
    weights = torch.ones(len(own["targets"]), dtype=torch.float64)
    return Cases(Rows(own["numbers"], own["codes"]), own["targets"], weights, None, classes)


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key[len(prefix) :]: x for key, x in tensors.items() if key.startswith(prefix)}


def _arrow(table: pd.DataFrame) -> bytes:
    named = table.set_axis([str(name) for name in table.columns], axis=1)
    stream = pa.BufferOutputStream()
    try:
        found = pa.Table.from_pandas(named, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise KindError(f"the cases cannot be saved ({error}): give each column one kind of cells") from error
    with pa.ipc.new_stream(stream, found.schema) as writer:
        writer.write_table(found)
    return stream.getvalue().to_pybytes()


def plain(value: Any, name: str) -> Any:
    """What JSON can hold and gives back the same."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise KindError(f"{name} holds a {type(value).__name__}, which a saved model cannot hold: give text or numbers")
