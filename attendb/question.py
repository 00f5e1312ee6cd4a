"""From the arguments of `attend` to a checked problem: kinds, shapes, devices, dtypes, masks, embedding."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod
from numbers import Real
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from .columns import Columns, Labels, Opaque, Parts, Values, count_rows
from .embedding import embed, fold_batch, without_unseen
from .errors import InputError, KindError
from .plans.cells import Problem, forced_blocks
from .reading import read_columns, read_pairwise, read_values, read_vector
from .scores.additive import Constant
from .scores.base import Score, as_score
from .scores.equal import Equal
from .weightings.base import Weighting
from .weightings.softmax import Exact, Normalized, Softmax
from .weightings.sparse import Thresholded


@dataclass(frozen=True, eq=False)
class Options:
    """What `attend` and `Database.attend` are asked beside the rows and the score, as the caller gave it."""

    where: Any = None
    bias: Any = None
    key_weights: Any = None
    exclude: Any = None
    tol: Any = None
    plan: str | None = None
    top: Any = 0


@dataclass(frozen=True, eq=False)
class Question:
    """A problem, and how its answer is handed back."""

    problem: Problem
    plan: str | None  # forced by name
    batch_shape: tuple[int, ...]
    n: int
    rows: int  # keys before masked ones were dropped
    kept: Tensor | None  # which rows were not dropped
    as_tensor: bool
    single_text: bool

    def shaped(self, x: Tensor) -> Tensor:
        """From the problem's (b, n, ·) to the caller's (..., n, ·)."""
        return x.reshape(*self.batch_shape, self.n, *x.shape[2:])


class Masks(NamedTuple):
    where: Any
    bias: Any
    key_weights: Tensor | None
    exclude: Tensor | None


def resolve(score: object, weighting: Weighting | None, *, default: Score) -> tuple[Score, Weighting]:
    """The score and the weighting, with the score's own weighting by default."""
    chosen = as_score(score)
    if weighting is None:
        return chosen, {"Softmax": Softmax, "Normalized": Normalized}[chosen.default_weighting]()
    if isinstance(weighting, type) and issubclass(weighting, Weighting):
        raise KindError(f"weighting is the class {weighting.__name__}: create it, {weighting.__name__}(…)")
    if not isinstance(weighting, Weighting):
        raise KindError(f"weighting must be a Weighting such as Softmax(), got {type(weighting).__name__}")
    if isinstance(weighting, Exact):
        if score is not default and not isinstance(chosen, (Equal, Constant)):
            raise InputError(
                f"Exact() is Normalized() over the score Equal() but score={type(chosen).__name__} was given: "
                "leave score= out, or use Normalized()"
            )
        return (Equal() if score is default else chosen), weighting
    return chosen, weighting


def read_question(
    queries: Any,
    keys: Any,
    values: Any,
    *,
    score: Score,
    weighting: Weighting,
    options: Options,
    positions: Tensor | None = None,
    anchor: Any = None,
) -> Question:
    """Read and check everything that the caller gave.

    ``positions``: names of the rows, checked before. ``anchor``: as the score gives it for a larger table.
    """
    top, tol = _top(options.top), _tolerance(options.tol)
    q, k = _read_queries_and_keys(queries, keys, stack=score.takes != "columns")
    v = read_values(values)
    m, n = count_rows(k), count_rows(q)
    if v.shape[-2] != m:
        raise InputError(f"keys have {m} rows but values have {v.shape[-2]}: give every key one value")
    device = _device(queries=q, keys=k, values=v, options=options)
    masks = _read_masks(options, n, m, named=positions is not None)
    score.check(q, k)
    result = _result_dtype(q, k, v)
    dtype = _dtype(result, masks.key_weights, weighting)
    batch_shape = _batch_shape(q, k, v, masks)
    positions = torch.arange(m) if positions is None else positions
    kept = _kept(masks, m)
    if kept is not None:
        k, v, masks, positions = _keep(kept, k, v, masks, positions)

    def pairs(x: Any, kind: torch.dtype | None) -> Any:
        return _pair(x, batch_shape, device, kind)

    problem = Problem(
        score=score,
        weighting=weighting,
        queries=cast(Parts, _to(q, device, dtype, batch_shape)),
        keys=cast(Parts, _to(k, device, dtype, batch_shape)),
        values=_to_values(v, device, dtype, batch_shape),
        positions=positions.to(device),
        query_positions=torch.arange(n, device=device),
        batch=prod(batch_shape),
        n=n,
        m=count_rows(k),
        dtype=dtype,
        device=device,
        result_dtype=result,
        where=pairs(masks.where, None),
        bias=pairs(masks.bias, dtype),
        key_weights=pairs(None if masks.key_weights is None else masks.key_weights[..., None, :], dtype),
        exclude=pairs(None if masks.exclude is None else masks.exclude[..., :, None], None),
        top=top,
        tol=tol,
        blocks=forced_blocks(),
    )
    problem = embed(fold_batch(without_unseen(problem)), anchor)
    as_tensor, one_text = _wants_tensor(queries, keys, values), isinstance(queries, str)
    return Question(problem, options.plan, batch_shape, n, m, kept, as_tensor, one_text)


def _top(top: object) -> int:
    if isinstance(top, bool) or not hasattr(top, "__index__"):
        raise KindError(f"top must be a whole number ≥ 0, got {top!r}")
    number = int(top)  # type: ignore[call-overload]
    if number < 0:
        raise InputError(f"top must be ≥ 0, got {number}: ask for 0 or more rows")
    return number


def _tolerance(tol: object) -> float | None:
    if tol is None:
        return None
    if not isinstance(tol, Real) or isinstance(tol, bool) or not 0 < float(tol) < inf:
        raise InputError(f"tol must be a number > 0, got {tol!r}: leave it out for an exact answer")
    return float(tol)


def _read_masks(options: Options, n: int, m: int, *, named: bool) -> Masks:
    """Where, bias, key_weights and exclude; ``named``: rows go by ids, which the caller has checked."""
    return Masks(
        _check_pairwise(read_pairwise(options.where, "where", boolean=True), "where", n, m),
        _check_pairwise(read_pairwise(options.bias, "bias", boolean=False), "bias", n, m),
        _key_weights(options.key_weights, m),
        _exclude(options.exclude, n, None if named else m),
    )


def _dtype(result: torch.dtype, key_weights: Tensor | None, weighting: Weighting) -> torch.dtype:
    """Of the arithmetic: half precision is added up in float32."""
    if key_weights is not None and _wide_weights(key_weights, weighting):
        return torch.float64
    return torch.float32 if result in (torch.float16, torch.bfloat16) else result


def _read_queries_and_keys(queries: Any, keys: Any, *, stack: bool) -> tuple[Columns, Columns]:
    k = read_columns(keys, "keys", stack=stack)
    q = _one_query(read_columns(queries, "queries", stack=stack), queries, k)
    width = q.shape[-1] if isinstance(q, Tensor) else 1
    if isinstance(k, Tensor) and k.shape == (0, 1) and width != 1 and np.ndim(keys) == 1:
        raise InputError(f"keys are an empty list, whose width is unknown: give an array of shape (0, {width})")
    return q, k


def _batch_shape(q: Columns, k: Columns, v: Tensor | Labels, masks: Masks) -> tuple[int, ...]:
    shapes = [*_batches(q), *_batches(k)]
    shapes += [x.shape[:-2] for x in (v, masks.where, masks.bias) if isinstance(x, Tensor)]
    shapes += [x.shape[:-1] for x in (masks.key_weights, masks.exclude) if x is not None]
    try:
        return np.broadcast_shapes(*shapes)  # torch's own imports sympy: a second
    except ValueError:
        raise InputError(
            f"the batch axes {sorted({tuple(s) for s in shapes if s})} of queries, keys, values and masks do not "
            "broadcast together: give equal ones, or 1"
        ) from None


def _wants_tensor(queries: Any, keys: Any, values: Any) -> bool:
    """Tensors are given back where the queries are tensors; text cannot be, so there keys and values decide."""

    def tensor_in(x: Any) -> bool:
        return isinstance(x, Tensor) or isinstance(x, dict) and any(tensor_in(part) for part in x.values())

    if tensor_in(queries):
        return True
    return isinstance(read_columns(queries, "queries"), Opaque) and (tensor_in(keys) or tensor_in(values))


def _one_query(q: Columns, raw: Any, k: Columns) -> Columns:
    """A 1-D query to keys of width d > 1 is one query."""
    if not (isinstance(q, Tensor) and isinstance(k, Tensor)) or k.shape[-1] <= 1:
        return q
    flat = len(np.shape(raw)) == 1 if isinstance(raw, (list, tuple)) else getattr(raw, "ndim", None) == 1
    return q.T if flat and q.shape == (k.shape[-1], 1) else q


def _device(*, options: Options, **inputs: Any) -> torch.device:
    inputs |= {name: getattr(options, name) for name in ("where", "bias", "key_weights", "exclude")}
    devices: dict[str, torch.device] = {}
    for name, x in inputs.items():
        for leaf in x.values() if isinstance(x, dict) else [x]:
            if isinstance(leaf, Tensor):
                devices[name] = leaf.device
    chosen = next((d for d in devices.values() if d.type != "cpu"), torch.device("cpu"))
    given = {name: d for name, d in devices.items() if d != chosen}
    if given and chosen.type != "cpu":
        raise InputError(
            f"inputs lie on different devices ({', '.join(f'{name} on {d}' for name, d in devices.items())}): "
            f"move them to one with .to({str(chosen)!r})"
        )
    if chosen.type == "meta":
        raise KindError("the inputs are on the meta device, which holds no numbers: move them to a real one")
    return chosen


def _result_dtype(*columns: Any) -> torch.dtype:
    found = [x.dtype for c in columns for x in (c.values() if isinstance(c, dict) else [c]) if isinstance(x, Tensor)]
    dtype = found[0] if found else torch.float64
    for other in found[1:]:
        dtype = torch.promote_types(dtype, other)
    return dtype


def _batches(columns: Columns) -> list[torch.Size]:
    parts = columns.values() if isinstance(columns, dict) else [columns]
    return [part.shape[:-2] for part in parts if isinstance(part, Tensor)]


def _key_weights(data: Any, m: int) -> Tensor | None:
    if data is None:
        return None
    w = read_vector(data, "key_weights")
    w = w if w.is_floating_point() else w.double()
    if w.ndim == 0 or w.shape[-1] != m:
        raise InputError(f"key_weights has shape {tuple(w.shape)} but there are {m} keys: give one number for each key")
    if not (w.detach() >= 0).all() or torch.isinf(w.detach()).any():
        bad = int((~(w.detach() >= 0) | torch.isinf(w.detach())).reshape(-1, m).any(0).nonzero()[0, 0])
        raise InputError(
            f"key_weights must be ≥ 0 and finite, got {float(w.detach().reshape(-1, m)[0, bad])} for key {bad}"
        )
    return w


def _wide_weights(w: Tensor, weighting: Weighting) -> bool:
    """Whether float32 cannot serve these multiplicities: beyond its range, or 1/w below its rounding of a threshold."""
    positive = w.detach()[w.detach() > 0]
    if not positive.numel():
        return False
    least, most = float(positive.min()), float(positive.max())
    threshold = isinstance(weighting, Thresholded)
    if least < 1e-290 or most > (1e9 if threshold else 1e290):
        raise InputError(
            f"key_weights run from {least:.3g} to {most:.3g}, which {type(weighting).__name__} cannot tell apart in "
            "float64: divide them by a common factor, or drop the rows that hardly count"
        )
    return least < 1e-30 or most > (1e1 if threshold else 1e30)


def _exclude(data: Any, n: int, m: int | None) -> Tensor | None:
    if data is None:
        return None
    x = read_vector(data, "exclude")
    if x.is_floating_point() or x.dtype == torch.bool:
        raise KindError(f"exclude has dtype {x.dtype}: give the position of one row for each query, −1 for none")
    if x.ndim == 0 or x.shape[-1] not in (1, n):
        raise InputError(
            f"exclude has shape {tuple(x.shape)} but there are {n} queries: give one position for each query"
        )
    if m is not None and x.numel() and (int(x.max()) >= m or int(x.min()) < -1):
        wrong = int(x.min()) if int(x.min()) < -1 else int(x.max())
        raise InputError(
            f"exclude names row {wrong} but positions run from 0 to {m - 1} (−1 = none): name one of those"
        )
    return x.long()


def _check_pairwise(x: Any, name: str, n: int, m: int) -> Any:
    if isinstance(x, Tensor):
        shape = (1, 1, *x.shape)[-2:]
        if shape[0] not in (1, n) or shape[1] not in (1, m):
            raise InputError(f"{name} has shape {tuple(x.shape)} but must broadcast to ({n} queries, {m} keys)")
    return x


def _kept(masks: Masks, m: int) -> Tensor | None:
    """The rows that some query may see, where that is a matter of keys alone; None: all."""
    hidden: list[Tensor] = []
    if isinstance(masks.where, Tensor) and prod(masks.where.shape[:-1]) == 1:
        hidden.append(~masks.where.detach().reshape(-1).cpu())
    if masks.key_weights is not None and masks.key_weights.ndim == 1:
        hidden.append(masks.key_weights.detach().cpu() <= 0)
    if not any(bool(x.any()) for x in hidden):
        return None
    keep = torch.ones(m, dtype=torch.bool)
    for x in hidden:
        keep = keep & ~x
    return keep.nonzero()[:, 0]


def _keep(
    kept: Tensor, k: Columns, v: Tensor | Labels, masks: Masks, positions: Tensor
) -> tuple[Columns, Tensor | Labels, Masks, Tensor]:
    def take(x: Any, axis: int = -2) -> Any:
        if isinstance(x, dict):
            return {name: take(part) for name, part in x.items()}
        if isinstance(x, Opaque):
            return x.take(kept.numpy())
        if isinstance(x, Labels):
            return x.take(kept.to(x.codes.device))
        if isinstance(x, Tensor) and x.shape[axis] > 1 or isinstance(x, Tensor) and axis == -2:
            return x.index_select(axis, kept.to(x.device))
        return x

    where = masks.where
    if isinstance(where, Tensor):
        where = None if prod(where.shape[:-1]) == 1 else take(where, -1)
    narrowed = Masks(where, take(masks.bias, -1), take(masks.key_weights, -1), masks.exclude)
    return take(k), take(v), narrowed, positions[kept]


def _flat(x: Tensor, batch_shape: tuple[int, ...], core: int) -> Tensor:
    """(…, core axes) → (b or 1, core axes)."""
    shape = x.shape[x.ndim - core :]
    if prod(x.shape[: x.ndim - core]) == 1 and prod(batch_shape) != 0:
        return x.reshape(1, *shape)
    return x.expand(*batch_shape, *shape).reshape(prod(batch_shape), *shape)


def _to(columns: Columns, device: torch.device, dtype: torch.dtype, batch_shape: tuple[int, ...]) -> Any:
    if isinstance(columns, dict):
        return {name: _to(part, device, dtype, batch_shape) for name, part in columns.items()}
    return _flat(columns.to(device=device, dtype=dtype), batch_shape, 2) if isinstance(columns, Tensor) else columns


def _to_values(v: Tensor | Labels, device: torch.device, dtype: torch.dtype, batch_shape: tuple[int, ...]) -> Values:
    if isinstance(v, Labels):
        return Labels(v.codes.to(device), v.names)
    return cast(Tensor, _to(v, device, dtype, batch_shape))


def _pair(x: Any, batch_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype | None) -> Any:
    if not isinstance(x, Tensor):
        return x
    x = x.reshape((1,) * (2 - x.ndim) + x.shape) if x.ndim < 2 else x
    return _flat(x.to(device) if dtype is None else x.to(device=device, dtype=dtype), batch_shape, 2)
