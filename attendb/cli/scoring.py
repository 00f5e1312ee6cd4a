"""From words to scores and weightings: ``--score``, ``--bandwidth``, ``--weights``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .printing import cell, closest_first, listed

if TYPE_CHECKING:
    from ..database import Database

DISTANCES = ("gaussian", "laplacian", "euclidean", "boxcar", "triangular", "epanechnikov")
PRODUCTS = ("dot", "scaled-dot", "cosine")
TEXTS = ("edit", "ngram")
EITHER = ("equal", "constant")
SCORES = (*DISTANCES, *PRODUCTS, *TEXTS, *EITHER)
WEIGHTS = ("softmax", "nearest", "top", "normalized", "uniform", "sparsemax", "entmax15", "linear", "conic", "sampled")
RULE = "standard deviation × m^(−1/(d+4)), Scott 1992"
CATEGORIES = 50  # a text column of at most so many different texts, each in two rows or more, names categories
SHARP = "softmax:0.2"
WHY_SHARP = "a text in common is worth e⁵ = 148 times the weight, with softmax alone e = 2.7 times"
NO_SPREAD = "the same in all rows that are asked: their standard deviation is 0, and 1 stands in its place"
FLAT = "similarities of text lie in 0 … 1, where softmax would be nearly equal weights"


@dataclass(frozen=True)
class Chosen:
    """A score and a weighting (None: the score's own), how they are called in print, and what was assumed."""

    score: Any
    weighting: Any
    words: dict[str, Any]
    assumed: tuple[str, ...] = ()

    @property
    def one_row(self) -> bool:
        """All weight lies on one row, so that the answer is the value of that row."""
        name, _, k = self.words["weights"].partition(":")
        return name in ("nearest", "sampled") or name == "top" and k.partition(":")[0] == "1"


def choose(
    database: Database,
    where: str | None,
    scores: Sequence[str],
    bandwidths: Sequence[str],
    weights: str | None,
    *,
    saved: Sequence[str] = (),
    load: Callable[[str], Any] | None = None,
) -> Chosen:
    """The score and the weighting that the options name, with defaults for what they leave open.

    ``saved`` names the scores that are stored with the table; they come before the ones that are built in.
    """
    kinds = database.columns["keys"]
    weighting = None if weights is None else weighting_of(weights)
    if len(scores) == 1 and scores[0] in saved and load is not None:
        if bandwidths:
            raise InputError(f"the saved score {scores[0]!r} has its own parameters: leave --bandwidth out")
        return Chosen(load(scores[0]), weighting, _words(scores[0], {}, None, weights))
    by_column = _scores_by_column(scores, kinds, saved)
    categories = _categories(database, where, _undecided(scores, by_column, kinds))
    by_column.update(dict.fromkeys(categories, "equal"))
    given, default, flat = _bandwidths(database, where, bandwidths, by_column)
    score = _score(by_column, given, kinds)
    names = set(by_column.values())
    shown = next(iter(names)) if len(names) == 1 else by_column
    assumed = _assumed_scores(scores, shown, categories)
    for columns, why in (([name for name in default if name not in flat], RULE), (flat, NO_SPREAD)):
        if columns:
            shown_bandwidths = ", ".join(f"{name} {cell(_bare(given[name]))}" for name in columns)
            assumed.append(f"bandwidth = {shown_bandwidths} ({why})")
    if weights is None and names <= set(TEXTS):
        weights, weighting = "nearest", weighting_of("nearest")
        assumed.append(f"weights = nearest ({FLAT})")
    elif weights is None and _is_mixed(by_column, kinds):
        weights, weighting = SHARP, weighting_of(SHARP)
        assumed.append(f"weights = {SHARP} ({WHY_SHARP})")
    weights = weights or score.default_weighting.lower()
    rule = (RULE if len(default) > len(flat) else NO_SPREAD) if default else None
    return Chosen(score, weighting, _words(shown, given, rule, weights), tuple(assumed))


def _assumed_scores(scores: Sequence[str], shown: str | Mapping[str, str], categories: Sequence[str]) -> list[str]:
    if scores and not categories:
        return []
    why = f" (at most {CATEGORIES} different texts in {listed(categories)}: categories)" if categories else ""
    return [f"score = {named(shown)}{why}"]


def _undecided(scores: Sequence[str], by_column: Mapping[str, str], kinds: Mapping[str, str]) -> list[str]:
    """The columns of text beside numbers that no option names a score for."""
    if all(kind == "text" for kind in kinds.values()) or any(text in TEXTS for text in scores):
        return []
    said = {text.rpartition("=")[0] for text in scores}
    return [name for name, score in by_column.items() if score in TEXTS and name not in said]


def _categories(database: Database, where: str | None, names: Sequence[str]) -> list[str]:
    """Which columns of text name categories: few different texts, and each in two rows or more on average."""
    found: dict[str, set[Any]] = {name: set() for name in names}
    m = 0
    for block in database._source.blocks(values=[], where=where) if names else ():
        m += len(block.positions)
        for name in list(found):
            found[name].update(block.keys[name].rows)  # type: ignore[union-attr]
            if len(found[name]) > CATEGORIES:
                del found[name]
        if not found:
            break
    return [name for name, texts in found.items() if 2 * len(texts) <= m]


def _is_mixed(by_column: Mapping[str, str], kinds: Mapping[str, str]) -> bool:
    """Whether texts and numbers are compared, by a score each, whose sum `softmax` takes for a logarithm."""
    texts = {kinds[name] == "text" for name, score in by_column.items() if score != "constant"}
    return len(texts) == 2 and len(set(by_column.values())) > 1


def named(shown: str | Mapping[str, str]) -> str:
    """A score, or one a column, in words."""
    return shown if isinstance(shown, str) else ", ".join(f"{name}={score}" for name, score in shown.items())


def weighting_of(text: str) -> Any:
    """The weighting that ``NAME[:NUMBER]`` names, or ``top:K[:WEIGHTS]``."""
    from ..weightings.linear import Conic, Linear
    from ..weightings.sampled import Sampled
    from ..weightings.selecting import Nearest, TopK
    from ..weightings.softmax import Normalized, Softmax, Uniform
    from ..weightings.sparse import Entmax15, Sparsemax

    name, _, rest = text.partition(":")
    if name == "top":
        k, _, then = rest.partition(":")
        return TopK(_whole(k, "top:K, such as top:5"), weighting_of(then) if then else None)
    if name == "softmax" and rest:
        return Softmax(number(rest, "softmax:TEMPERATURE"))
    if name == "nearest":
        return Nearest(number(rest, "nearest:AT_LEAST") if rest else None)
    if name == "sampled":
        return Sampled(_whole(rest, "sampled:SEED") if rest else 0)
    plain = {"softmax": Softmax, "normalized": Normalized, "uniform": Uniform, "sparsemax": Sparsemax,
             "entmax15": Entmax15, "linear": Linear, "conic": Conic}  # fmt: skip
    if name not in plain:
        raise InputError(f"there are no weights {name!r}: choose one of {', '.join(closest_first(name, WEIGHTS))}")
    if rest:
        raise InputError(f"the weights {name!r} take no number, got {text!r}: give {name} alone")
    return plain[name]()


def number(text: str, what: str) -> float:
    """A number from the command line."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise InputError(f"{what} must be a number, got {text!r}")
    return found


def _whole(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"{what} takes a whole number, got {text!r}")
    return int(text)


def _words(score: Any, given: Mapping[str, list[float]], rule: str | None, weights: str | None) -> dict[str, Any]:
    words: dict[str, Any] = {"score": score, "weights": weights or "the default of the score"}
    if given:
        words["bandwidth"] = {name: _bare(h) for name, h in given.items()}
    if rule is not None:
        words["bandwidth_rule"] = rule
    return words


def _bare(h: list[float]) -> float | list[float]:
    return h[0] if len(h) == 1 else h


def _scores_by_column(scores: Sequence[str], kinds: Mapping[str, str], saved: Sequence[str]) -> dict[str, str]:
    """The name of a score for each key column: the one given for it, the one given for all, else the default."""
    whole: str | None = None
    by_column: dict[str, str] = {}
    for text in scores:
        column, equals, name = text.rpartition("=")
        if name not in SCORES:
            choices = closest_first(name, [*saved, *SCORES])
            raise InputError(f"there is no score {name!r}: choose one of {', '.join(choices)}")
        if not equals:
            if whole is not None:
                raise InputError(f"two scores were given, {whole} and {name}: give one, or --score COLUMN={name}")
            whole = name
        elif column not in kinds:
            raise InputError(
                f"there is no key column {column!r}: choose one of {listed(closest_first(column, [*kinds]))}"
            )
        else:
            _fits(name, column, kinds[column])
            by_column[column] = name
    if whole is not None and not any(_serves(whole, kind) for kind in kinds.values()):
        choices = (*TEXTS, *EITHER) if whole not in TEXTS else (*DISTANCES, *PRODUCTS, *EITHER)
        held = "numbers" if whole in TEXTS else "text"
        raise InputError(f"the score {whole!r} cannot compare {held}, which {listed([*kinds])} hold: "
                         f"choose one of {', '.join(choices)}")  # fmt: skip
    for name, kind in kinds.items():
        default = "edit" if kind == "text" else "gaussian"
        by_column.setdefault(name, whole if whole is not None and _serves(whole, kind) else default)
    return {name: by_column[name] for name in kinds}


def _serves(score: str, kind: str) -> bool:
    return score in EITHER or (score in TEXTS) == (kind == "text")


def _fits(score: str, column: str, kind: str) -> None:
    if not _serves(score, kind):
        choices = (*TEXTS, *EITHER) if kind == "text" else (*DISTANCES, *PRODUCTS, *EITHER)
        raise InputError(f"column {column!r} holds {kind}, which the score {score!r} cannot compare: choose one of "
                         f"{', '.join(choices)}")  # fmt: skip


def _bandwidths(
    database: Database, where: str | None, texts: Sequence[str], by_column: Mapping[str, str]
) -> tuple[dict[str, list[float]], list[str], list[str]]:
    """A bandwidth for each column that takes one, the columns whose one is the default, and those without spread."""
    taking = [name for name, score in by_column.items() if score in DISTANCES]
    if not taking:
        if texts:
            scores = ", ".join(dict.fromkeys(by_column.values()))
            raise InputError(f"the score {scores} has no bandwidth: leave --bandwidth out")
        return {}, [], []
    parts = [part for text in texts for part in text.split(",")]
    plain = [number(part, "--bandwidth") for part in parts if "=" not in part]
    given: dict[str, list[float]] = {}
    if len(plain) == 1:
        given = dict.fromkeys(taking, plain)
    elif plain:
        if len(plain) != len(taking):
            raise InputError(
                f"{len(plain)} bandwidths were given but {len(taking)} key columns take one ({listed(taking)}): give "
                "one for all, one for each in this order, or COLUMN=NUMBER"
            )
        given = {name: [h] for name, h in zip(taking, plain, strict=True)}
    for part in parts:
        column, equals, h = part.rpartition("=")
        if equals and column not in taking:
            raise InputError(
                f"no key column {column!r} takes a bandwidth: choose one of {listed(closest_first(column, taking))}"
            )
        if equals:
            given[column] = [number(h, f"the bandwidth of {column!r}")]
    default = [name for name in taking if name not in given]
    flat: list[str] = []
    if default:
        from ..bandwidth import scott, spread

        m, deviations = spread(database, where=where)
        d = sum(deviation.numel() for deviation in deviations.values())
        given.update({name: scott(deviations[name], m, d).tolist() for name in default})
        flat = [name for name in default if not deviations[name].any()]
    return {name: given[name] for name in taking}, default, flat


def _score(by_column: Mapping[str, str], bandwidths: Mapping[str, list[float]], kinds: Mapping[str, str]) -> Any:
    """One score of all columns where there is one, else one a column."""
    from ..scores.columns import PerColumn

    names = set(by_column.values())
    name = next(iter(names))
    together = name in EITHER or len(kinds) == 1 or all(kind != "text" for kind in kinds.values())
    if len(names) > 1 or not together:
        return PerColumn({column: _make(score, bandwidths.get(column)) for column, score in by_column.items()})
    if not bandwidths:
        return _make(name, None)
    if len(bandwidths) == 1 or len({tuple(h) for h in bandwidths.values()}) > 1:
        widths = {column: _width(kinds[column]) for column in kinds}
        return _make(name, [x for column, h in bandwidths.items() for x in (h * widths[column] if len(h) == 1 else h)])
    return _make(name, next(iter(bandwidths.values())))


def _width(kind: str) -> int:
    return int(kind.split()[0]) if kind[:1].isdigit() else 1


def _make(name: str, bandwidth: list[float] | None) -> Any:
    from ..scores import additive, distance, dot, equal, text

    if name in DISTANCES:
        kind = getattr(distance, name.capitalize())
        return kind(bandwidth[0] if bandwidth is not None and len(bandwidth) == 1 else bandwidth)
    plain = {"dot": dot.Dot, "scaled-dot": dot.ScaledDot, "cosine": dot.Cosine, "edit": text.EditSimilarity,
             "ngram": text.NGramSimilarity, "equal": equal.Equal, "constant": additive.Constant}  # fmt: skip
    return plain[name]()
