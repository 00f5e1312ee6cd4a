"""Scores on disk: how a score was made and what it has learned, as one safetensors file each.

The header of the file says how to make the score, as JSON; the tensors are its parameters. Nothing in a file is run:
only the scores of this library are made by name. A file is written beside its place, then renamed.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from .errors import InputError, KindError, NotFoundError, StorageError
from .scores.additive import Additive, Constant
from .scores.base import Custom, Score, as_score
from .scores.columns import PerColumn
from .scores.distance import Boxcar, Epanechnikov, Euclidean, Gaussian, Laplacian, Triangular
from .scores.dot import Bilinear, Cosine, Dot, ScaledDot
from .scores.equal import Equal
from .scores.text import EditSimilarity, NGramSimilarity, TextScore

END = ".safetensors"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]*")
_PLAIN = {one.__name__: one for one in (Dot, ScaledDot, Cosine, Constant, Equal)}
_KERNELS = {one.__name__: one for one in (Gaussian, Laplacian, Euclidean, Boxcar, Triangular, Epanechnikov)}
YOURS = "yours"


def save_score(folder: str, name: str, score: Any) -> None:
    """Save a score under a name, in place of one of that name. Raises KindError for what cannot be saved."""
    from safetensors.torch import save

    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.endswith(" "):
        raise InputError(f"{name!r} cannot be the name of a score: use letters, digits, '_', '-', '.' and spaces")
    score = as_score(score)
    made = _made(score)
    learning = [key for key, parameter in score.named_parameters() if parameter.requires_grad]
    state = {key: x.detach().cpu().contiguous() for key, x in score.state_dict().items()}
    header = {"attendb": json.dumps({"format": 1, "score": made, "learning": learning})}
    _write(Path(folder), name, save(state, header))


def saved_scores(folder: str) -> tuple[str, ...]:
    """The names of the scores in a folder."""
    if not os.path.isdir(folder):
        return ()
    return tuple(sorted(x[: -len(END)] for x in os.listdir(folder) if x.endswith(END) and not x.startswith(".")))


def load_score(folder: str, name: str, into: nn.Module | None = None) -> Score:
    """The score of that name; ``into``: the module of yours that its parameters are loaded into."""
    from safetensors import SafetensorError, safe_open

    if name not in saved_scores(folder):
        have = ", ".join(map(repr, saved_scores(folder))) or "none"
        raise NotFoundError(f"no score is saved as {name!r}: there are {have}")
    path = os.path.join(folder, name + END)
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["attendb"])
            state = {key: file.get_tensor(key) for key in file.keys()}
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise StorageError(f"the saved score {path} is damaged ({error}): save it again") from error
    if about["format"] > 1:
        raise StorageError(f"the saved score {path} has a newer format: install a newer attendb")
    score = as_score(into) if into is not None else _remade(about["score"], state, "", name)
    try:
        score.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"the saved score {name!r} does not fit into {type(score).__name__} ({reason})") from None
    if into is None:
        for key, parameter in score.named_parameters():
            parameter.requires_grad_(key in about["learning"])
    return score


def _made(score: nn.Module) -> dict[str, Any]:
    """How to make the score again."""
    kind = type(score)
    if kind.__name__ in _PLAIN and kind is _PLAIN[kind.__name__]:
        return {"class": kind.__name__}
    if kind.__name__ in _KERNELS and kind is _KERNELS[kind.__name__]:
        return {"class": kind.__name__}
    if isinstance(score, (Bilinear, Additive)) and kind in (Bilinear, Additive):
        return {"class": kind.__name__}
    if isinstance(score, TextScore) and kind in (EditSimilarity, NGramSimilarity):
        options = {"raw": score.raw, "one_missing": score.one_missing, "both_missing": score.both_missing}
        own = {"measure": score.measure} if isinstance(score, EditSimilarity) else {"n": list(score.n)}  # type: ignore[attr-defined]
        return {"class": kind.__name__, "options": {**own, **options}}
    if isinstance(score, PerColumn) and kind is PerColumn:
        parts = [_made(part) for part in score.parts]
        if any(part["class"] == YOURS for part in parts):
            raise KindError("PerColumn has a part of your own, which cannot be saved: save the module by itself")
        return {"class": "PerColumn", "names": list(score.names), "parts": parts}
    own = score.fn if isinstance(score, Custom) else score
    if not isinstance(own, nn.Module):
        raise KindError(
            f"the function {getattr(own, '__name__', 'of yours')} cannot be saved with a table: make it an nn.Module, "
            "whose parameters can, or use one of attendb's scores"
        )
    return {"class": YOURS, "name": type(own).__qualname__}


def _remade(made: dict[str, Any], state: dict[str, torch.Tensor], prefix: str, name: str) -> Score:
    """The score that `_made` describes, with room for the parameters."""
    kind = made["class"]
    if kind in _PLAIN:
        return _PLAIN[kind]()
    if kind in _KERNELS:
        return _KERNELS[kind](state[prefix + "scale.start"])
    if kind == "Bilinear":
        return Bilinear(*state[prefix + "weight"].shape, weight=state[prefix + "weight"])
    if kind == "Additive":
        parts = {part: state[prefix + part] for part in ("query_weight", "key_weight", "weight")}
        hidden, d_q = parts["query_weight"].shape
        return Additive(d_q, parts["key_weight"].shape[1], hidden, **cast(Any, parts))
    if kind == "EditSimilarity":
        return EditSimilarity(**made["options"])
    if kind == "NGramSimilarity":
        return NGramSimilarity(**{**made["options"], "n": tuple(made["options"]["n"])})
    if kind == "PerColumn":
        scores = {
            column: _remade(part, state, f"{prefix}parts.{i}.", name)
            for i, (column, part) in enumerate(zip(made["names"], made["parts"], strict=True))
        }
        return PerColumn(scores)
    if kind == YOURS:
        raise KindError(
            f"the saved score {name!r} is a module of your own ({made['name']}), which only its code can make: pass "
            "one as into="
        )
    raise StorageError(f"the saved score {name!r} is a {kind}, which this attendb does not know: install a newer one")


def _write(folder: Path, name: str, data: bytes) -> None:
    from .sources.table_writing import locked, told, write_whole

    with told(str(folder.parent), "written to"), locked(folder.parent):
        folder.mkdir(exist_ok=True)
        write_whole(str(folder / (name + END)), data)
