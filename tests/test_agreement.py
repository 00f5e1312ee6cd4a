"""Agreement with systems that nobody here wrote: torch's attention, scikit-learn, scipy, R and statsmodels.

The formulas of the other systems are not repeated here: each test calls the other system, or compares with numbers
that it printed (R's and statsmodels' smoothers, with the part of their data that those numbers depend on). Those
numbers and that data are what makes this file long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import gammaln
from scipy.stats import gaussian_kde
from sklearn.metrics.pairwise import cosine_similarity, rbf_kernel
from sklearn.neighbors import (
    KernelDensity,
    KNeighborsClassifier,
    KNeighborsRegressor,
    NearestNeighbors,
    RadiusNeighborsRegressor,
)
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import attendb as ad
from attendb.testing.comparison import close

BATCH, HEADS, WIDTH, VALUE_WIDTH = 2, 3, 8, 5
TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-6}
DTYPES = list(TOLERANCE)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
plans = pytest.mark.parametrize("plan", ["dense", "fused", None])
each_way = pytest.mark.parametrize("plan", ["dense", None])


# torch: scaled_dot_product_attention


@dataclass(frozen=True)
class Asked:
    """One question in the words of both sides; the bias, where there is one, is a leaf."""

    name: str
    torch_mask: Callable[[int, int, torch.dtype], dict[str, Any]]
    option: str = ""

    def ours(self, given: dict[str, Any]) -> dict[str, Any]:
        if self.option == "causal":
            return {"where": lambda i, j: j <= i}
        return {self.option: given["attn_mask"]} if self.option else {}


def some(*shape: int) -> Tensor:
    """A boolean mask in which every query may see its first key."""
    mask = torch.rand(*shape) < 0.5
    mask[..., 0] = True
    return mask


ASKED = [
    Asked("plain", lambda n, m, dtype: {}),
    Asked("causal", lambda n, m, dtype: {"is_causal": True}, "causal"),
    Asked("mask of batch and head", lambda n, m, dtype: {"attn_mask": some(BATCH, HEADS, n, m)}, "where"),
    Asked("mask of a batch", lambda n, m, dtype: {"attn_mask": some(BATCH, 1, 1, m)}, "where"),
    Asked("mask of all", lambda n, m, dtype: {"attn_mask": some(n, m)}, "where"),
    Asked("bias of a head", lambda n, m, dtype: {"attn_mask": torch.randn(HEADS, n, m, dtype=dtype)}, "bias"),
    Asked("bias of all", lambda n, m, dtype: {"attn_mask": torch.randn(n, m, dtype=dtype)}, "bias"),
]


def heads(n: int, m: int, dtype: torch.dtype) -> list[Tensor]:
    """Queries, keys and values with batch and head axes, as leaves."""
    shapes = (n, WIDTH), (m, WIDTH), (m, VALUE_WIDTH)
    return [torch.randn(BATCH, HEADS, *shape, dtype=dtype).requires_grad_() for shape in shapes]


def same_with_gradients(got: Tensor, expected: Tensor, leaves: Sequence[Tensor], room: float) -> None:
    """Equal values, equal dtypes, and equal gradients of one weighted sum of them."""
    assert got.dtype == expected.dtype
    close(got, expected, "value", room, room)
    cotangent = torch.randn_like(expected)
    found, wanted = (torch.autograd.grad(x, leaves, cotangent) for x in (got, expected))
    for place, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        close(ours, theirs, f"gradient {place}", 10 * room, 10 * room)


@dtypes
@plans
@pytest.mark.parametrize(("n", "m"), [(7, 7), (5, 9), (9, 5)])
@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked.name)
def test_torch_scaled_dot_product_attention(asked: Asked, n: int, m: int, plan: str | None, dtype: torch.dtype) -> None:
    leaves = queries, keys, values = heads(n, m, dtype)
    given = asked.torch_mask(n, m, dtype)
    if asked.option == "bias" and plan != "fused":  # which refuses a bias that learns
        leaves = [*leaves, given["attn_mask"].requires_grad_()]
    expected = scaled_dot_product_attention(queries, keys, values, **given)
    answer = ad.attend(queries, keys, values, **asked.ours(given), plan=plan)
    assert plan is None or answer.plan.name == plan
    same_with_gradients(answer.value, expected, leaves, TOLERANCE[dtype])


@dtypes
@plans
def test_torch_attention_with_a_scale_of_its_own(plan: str | None, dtype: torch.dtype) -> None:
    leaves = queries, keys, values = heads(6, 8, dtype)
    answer = ad.attend(*leaves, score=ad.Dot(), weighting=ad.Softmax(temperature=4.0), plan=plan)
    expected = scaled_dot_product_attention(queries, keys, values, scale=0.25)
    same_with_gradients(answer.value, expected, leaves, TOLERANCE[dtype])


@dtypes
def test_torch_attention_of_grouped_queries(dtype: torch.dtype) -> None:
    """Six query heads share two heads of keys: one more batch axis, in which keys have length 1."""
    queries, keys, values = (torch.randn(BATCH, h, 7, WIDTH, dtype=dtype).requires_grad_() for h in (2 * HEADS, 2, 2))
    expected = scaled_dot_product_attention(queries, keys, values, enable_gqa=True)
    grouped = queries.unflatten(1, (2, HEADS))
    answer = ad.attend(grouped, keys[:, :, None], values[:, :, None])
    same_with_gradients(answer.value.flatten(1, 2), expected, [queries, keys, values], TOLERANCE[dtype])


def test_torch_attention_on_a_longer_sequence() -> None:
    """Long enough for several blocks of keys and queries."""
    leaves = [torch.randn(1, 2, 1500, 16, dtype=torch.float64).requires_grad_() for _ in range(3)]
    queries, keys, values = leaves
    expected = scaled_dot_product_attention(queries, keys, values, is_causal=True)
    answer = ad.attend(*leaves, where=lambda i, j: j <= i, plan="dense")
    same_with_gradients(answer.value, expected, leaves, 1e-11)


# torch: nn.MultiheadAttention


def by_heads(layer: nn.MultiheadAttention, inputs: list[Tensor]) -> list[Tensor]:
    """Inputs (batch, length, embed) through the layer's own projections: (batch, heads, length, embed / heads)."""
    assert layer.in_proj_weight is not None and layer.in_proj_bias is not None
    projections = zip(inputs, layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3), strict=True)
    return [
        nn.functional.linear(x, w, b).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for x, w, b in projections
    ]


@dtypes
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("masked", [False, True], ids=["all pairs", "masked"])
def test_torch_multihead_attention(masked: bool, padded: bool, need_weights: bool, dtype: torch.dtype) -> None:
    """Both masks of the layer say what is hidden; `where` says what may be seen."""
    n, m, width = 6, 9, 12
    layer = nn.MultiheadAttention(width, HEADS, batch_first=True, dtype=dtype)
    nn.init.normal_(layer.in_proj_bias, std=0.3)
    inputs = [torch.randn(BATCH, length, width, dtype=dtype).requires_grad_() for length in (n, m, m)]
    padding = torch.arange(m) >= torch.tensor([[5], [8]]) if padded else None
    hidden = ~some(n, m) if masked else None
    theirs, their_weights = layer(*inputs, key_padding_mask=padding, attn_mask=hidden, need_weights=need_weights)

    where = torch.ones(BATCH, 1, n, m, dtype=torch.bool)
    if padding is not None:
        where = where & ~padding[:, None, None, :]
    if hidden is not None:
        where = where & ~hidden
    answer = ad.attend(*by_heads(layer, inputs), where=where)
    ours = layer.out_proj(answer.value.transpose(1, 2).flatten(-2))

    room = TOLERANCE[dtype]
    if need_weights:
        close(answer.weights().mean(1), their_weights, "average weights", room, room)
    assert layer.in_proj_weight is not None and layer.in_proj_bias is not None
    parameters = [layer.in_proj_weight, layer.in_proj_bias, layer.out_proj.weight, layer.out_proj.bias]
    same_with_gradients(ours, theirs, [*inputs, *parameters], room)


def test_torch_multihead_attention_weights_carry_the_same_gradient() -> None:
    layer = nn.MultiheadAttention(12, HEADS, batch_first=True, dtype=torch.float64)
    inputs = [torch.randn(BATCH, length, 12, dtype=torch.float64) for length in (6, 9, 9)]
    theirs = layer(*inputs, average_attn_weights=False)[1]
    ours = ad.attend(*by_heads(layer, inputs)).weights()
    assert layer.in_proj_weight is not None
    same_with_gradients(ours, theirs, [layer.in_proj_weight], 1e-12)


# scikit-learn and scipy: densities from the log-normaliser


def log_ball(d: int) -> float:
    """log of the volume of the unit ball in d dimensions."""
    return 0.5 * d * math.log(math.pi) - float(gammaln(0.5 * d + 1))


@dataclass(frozen=True)
class Kernel:
    """A kernel as scikit-learn names it, our score, and the log of the integral of its profile over d dimensions."""

    name: str
    score: Callable[[float], ad.Score]
    log_integral: Callable[[int], float]


KERNELS = [
    Kernel("gaussian", ad.Gaussian, lambda d: 0.5 * d * math.log(2 * math.pi)),
    Kernel("exponential", ad.Euclidean, lambda d: log_ball(d) + math.log(d) + float(gammaln(d))),
    Kernel("tophat", ad.Boxcar, log_ball),
    Kernel("epanechnikov", ad.Epanechnikov, lambda d: log_ball(d) + math.log(2 / (d + 2))),
    Kernel("linear", ad.Triangular, lambda d: log_ball(d) - math.log(d + 1)),
]


@each_way
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_sklearn_kernel_density(kernel: Kernel, d: int, weighted: bool, plan: str | None) -> None:
    """log density = log_normalizer − log Σw − d log h − log ∫ kernel, −∞ where a compact kernel reaches nothing."""
    keys, queries, h = np.random.randn(60, d), 1.5 * np.random.randn(25, d), 0.9
    queries[0] = 30.0
    weights = np.random.rand(60) + 0.1 if weighted else np.ones(60)
    model = KernelDensity(kernel=kernel.name, bandwidth=h).fit(keys, sample_weight=weights if weighted else None)
    answer = ad.attend(queries, keys, np.ones(60), score=kernel.score(h), key_weights=weights, plan=plan)
    ours = answer.log_normalizer - math.log(weights.sum()) - d * math.log(h) - kernel.log_integral(d)
    theirs = model.score_samples(queries)
    assert np.isneginf(theirs).any() == (kernel.name in ("tophat", "epanechnikov", "linear"))
    close(ours, theirs, "log density", 1e-10, 1e-10)


@each_way
def test_scipy_gaussian_kde_is_a_gaussian_with_a_full_matrix(plan: str | None) -> None:
    keys, queries, weights = np.random.randn(2, 80), np.random.randn(2, 15), np.random.rand(80)
    keys[1] += 0.8 * keys[0]
    model = gaussian_kde(keys, weights=weights)
    root = np.linalg.cholesky(model.covariance)
    answer = ad.attend(queries.T, keys.T, np.ones(80), score=ad.Gaussian(root), key_weights=weights, plan=plan)
    log_integral = math.log(2 * math.pi) + math.log(np.linalg.det(root))
    close(answer.log_normalizer - math.log(weights.sum()) - log_integral, model.logpdf(queries), "logpdf", 1e-11, 1e-11)


@each_way
def test_sklearn_pairwise_kernels(plan: str | None) -> None:
    queries, keys, values = np.random.randn(9, 4), np.random.randn(20, 4), np.random.randn(20, 2)
    ours = ad.attend(queries, keys, values, score=ad.Cosine(), weighting=ad.Linear(), plan=plan).value
    close(ours, cosine_similarity(queries, keys) @ values, "cosine", 1e-12, 1e-12)
    total = ad.attend(queries, keys, values, score=ad.Gaussian(0.7), plan=plan).log_normalizer
    close(total, np.log(rbf_kernel(queries, keys, gamma=0.5 / 0.7**2).sum(1)), "gaussian", 1e-11, 1e-11)


# scikit-learn: neighbours


class InverseDistance(nn.Module):
    """1/‖q − k‖, infinite where they coincide."""

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return 1 / torch.cdist(queries, keys, compute_mode="donot_use_mm_for_euclid_dist")


@pytest.mark.parametrize("k", [1, 4, 60])
@pytest.mark.parametrize("d", [1, 3])
def test_sklearn_neighbours_regressor(d: int, k: int) -> None:
    keys, queries, values = np.random.randn(60, d), np.random.randn(30, d), np.random.randn(60, 2)
    queries[:5] = keys[:5]
    uniform = ad.attend(queries, keys, values, score=ad.Euclidean(), weighting=ad.TopK(k, then=ad.Uniform()), top=k)
    model = KNeighborsRegressor(k, algorithm="kd_tree").fit(keys, values)  # whose distances come from differences
    close(uniform.value, model.predict(queries), "uniform", 1e-12, 1e-12)
    found = model.kneighbors(queries, return_distance=False)
    assert uniform.top is not None
    assert (np.sort(uniform.top.positions) == np.sort(found)).all()

    inverse = ad.TopK(k, then=ad.Normalized())
    near = ad.attend(queries, keys, values, score=InverseDistance(), weighting=inverse).value
    model.set_params(weights="distance")
    close(near, model.predict(queries), "distance", 1e-11, 1e-11)


def test_sklearn_neighbours_of_a_query_that_is_a_stored_row() -> None:
    """Inverse distance is infinite there: only the rows at distance 0 count, each alike."""
    cases: list[tuple[Any, Any, Any, float]] = [
        ([[1.0], [2.0], [2.0], [3.0]], [1.0, 2.0, 6.0, 3.0], [[2.0]], 4.0),
        ([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [1.0, 0.0, 0.0, 0.0], [[0.0, 0.0]], 1.0),
    ]
    for keys, values, query, right in cases:
        theirs = KNeighborsRegressor(3, weights="distance").fit(keys, values).predict(query)
        for weighting in (ad.TopK(3, then=ad.Normalized()), ad.Normalized()):
            ours = ad.attend(query, keys, values, score=InverseDistance(), weighting=weighting).value
            assert float(ours[0, 0]) == float(theirs[0]) == right
        assert float(ad.attend(query, keys, values, weighting=ad.Exact()).value[0, 0]) == right


@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_sklearn_neighbours_classifier(weights: str) -> None:
    keys, queries, labels = np.random.randn(60, 2), np.random.randn(30, 2), np.random.randint(0, 4, 60)
    queries[:5] = keys[:5]
    model = KNeighborsClassifier(7, weights=weights).fit(keys, labels)
    score, then = (ad.Euclidean(), ad.Uniform()) if weights == "uniform" else (InverseDistance(), ad.Normalized())
    shares = ad.attend(queries, keys, np.eye(4)[labels], score=score, weighting=ad.TopK(7, then=then)).value
    close(shares, model.predict_proba(queries), "probabilities", 1e-12, 1e-12)


def test_sklearn_neighbours_on_a_grid_of_equal_distances() -> None:
    """Which of the tied rows scikit-learn lists is its affair: the distances agree, ours are the lowest positions."""
    side = np.arange(5.0)
    keys = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    keys = np.concatenate([keys, keys[::2]])
    queries = np.concatenate([keys[:25], keys[:25] + 0.5])
    all_distances, _ = NearestNeighbors(n_neighbors=len(keys)).fit(keys).kneighbors(queries)
    for k in (1, 2, 3, 4, 6, 9):
        weighting = ad.TopK(k, then=ad.Uniform())
        answer = ad.attend(queries, keys, np.arange(len(keys)), score=ad.Euclidean(), weighting=weighting, top=k)
        assert answer.top is not None
        exact = np.linalg.norm(queries[:, None] - keys, axis=-1)
        chosen = np.sort(answer.top.positions)
        close(np.sort(np.take_along_axis(exact, chosen, 1)), all_distances[:, :k], "distances", 1e-12, 1e-12)
        close(answer.value[:, 0], chosen.mean(1), "value", 1e-12, 1e-12)
        last = all_distances[:, k - 1 : k]
        tied, taken = np.isclose(exact, last), (chosen[..., None] == np.arange(len(keys))).any(1)
        for row in range(len(queries)):
            among = np.flatnonzero(tied[row])
            count = int(taken[row][among].sum())
            assert (among[taken[row][among]] == among[:count]).all()


def test_sklearn_radius_neighbours_are_a_boxcar() -> None:
    """The boundary belongs to the window on both sides; a query that reaches nothing is empty here, NaN there."""
    keys, values = np.arange(12.0)[:, None] / 4, np.random.randn(12)
    queries = np.array([[0.0], [0.5], [1.1], [2.75], [3.25], [9.0]])
    with pytest.warns(UserWarning, match="no neighbors"):
        theirs = RadiusNeighborsRegressor(radius=0.5).fit(keys, values).predict(queries)
    answer = ad.attend(queries, keys, values, score=ad.Boxcar(0.5))
    assert (answer.empty == np.isnan(theirs)).all() and answer.empty.tolist() == [False] * 5 + [True]
    close(answer.value[:5, 0], theirs[:5], "value", 1e-13, 1e-13)


# R and statsmodels: kernel regression on the smoothers' classical data, by the numbers they printed


def numbers(text: str) -> np.ndarray:
    """Pairs of numbers, one pair after the other, as an array (rows, 2); NA is NaN."""
    return np.array([float(word.replace("NA", "nan")) for word in text.split()]).reshape(-1, 2)


# Milliseconds after impact, head acceleration in g, of the motorcycle experiments that Silverman 1985 published:
# the rows up to 22 ms of data set `mcycle` in R's package MASS. The fits below depend on no later row.
MCYCLE = numbers(
    """
    2.4 0  2.6 -1.3  3.2 -2.7  3.6 0  4 -2.7  6.2 -2.7  6.6 -2.7  6.8 -1.3  7.8 -2.7  8.2 -2.7  8.8 -1.3  8.8 -2.7
    9.6 -2.7  10 -2.7  10.2 -5.4  10.6 -2.7  11 -5.4  11.4 0  13.2 -2.7  13.6 -2.7  13.8 0  14.6 -13.3  14.6 -5.4
    14.6 -5.4  14.6 -9.3  14.6 -16  14.6 -22.8  14.8 -2.7  15.4 -22.8  15.4 -32.1  15.4 -53.5  15.4 -54.9  15.6 -40.2
    15.6 -21.5  15.8 -21.5  15.8 -50.8  16 -42.9  16 -26.8  16.2 -21.5  16.2 -50.8  16.2 -61.7  16.4 -5.4  16.4 -80.4
    16.6 -59  16.8 -71  16.8 -91.1  16.8 -77.7  17.6 -37.5  17.6 -85.6  17.6 -123.1  17.6 -101.9  17.8 -99.1
    17.8 -104.4  18.6 -112.5  18.6 -50.8  19.2 -123.1  19.4 -85.6  19.4 -72.3  19.6 -127.2  20.2 -123.1  20.4 -117.9
    21.2 -134  21.4 -101.9  21.8 -108.4  22 -123.1
    """
)

# Length of an eruption and waiting time to the next, both in minutes, of Old Faithful (Azzalini and Bowman 1990): the
# rows up to 2.2 minutes of R's data set `faithful`. The fits below depend on no longer eruption.
FAITHFUL = numbers(
    """
    1.6 52  1.667 64  1.7 59  1.733 54  1.75 47  1.75 62  1.75 47  1.75 58  1.75 48  1.75 54  1.783 52  1.783 46
    1.8 54  1.8 51  1.8 53  1.8 53  1.817 60  1.817 59  1.817 46  1.833 54  1.833 59  1.833 54  1.833 63  1.833 46
    1.833 46  1.833 57  1.85 54  1.85 58  1.867 48  1.867 50  1.867 51  1.867 47  1.867 45  1.867 53  1.867 49
    1.867 50  1.883 58  1.883 51  1.883 55  1.883 54  1.917 45  1.917 49  1.933 52  1.933 49  1.95 51  1.967 55
    1.967 56  1.967 56  1.983 62  1.983 59  1.983 43  2 59  2 58  2 55  2 56  2.017 52  2.017 60  2.017 49  2.033 53
    2.033 51  2.067 65  2.083 57  2.083 57  2.1 53  2.1 49  2.1 60  2.133 67  2.15 46  2.167 52  2.167 48  2.183 55
    2.2 60  2.2 45  2.2 54
    """
)

# R 4.2.2, stats::ksmooth(x, y, kernel, bandwidth) on the whole data sets, at some of 101 equally spaced points.
KSMOOTH = [
    (
        "mcycle, normal, 2",
        """
        2.4 -1.04659605618243  5.16 -2.29806274901939  7.368 -2.320714372533  10.128 -3.36121470383116
        12.336 -2.40353398554772  15.096 -27.8157572238114  17.304 -74.5256325810895  20.064 -109.411369941784
        """,
    ),
    (
        "mcycle, normal, 5",
        """
        2.4 -1.34242872018432  4.056 -1.67506034694048  6.264 -2.26185305395042  7.92 -2.57423146802628
        10.128 -3.7290761706918  11.784 -9.9915768516433  13.992 -28.1187579789766  15.648 -43.1027714379574
        """,
    ),
    (
        "mcycle, normal, 10",
        """
        2.4 -1.94992595034068  2.952 -2.10999631021649  4.056 -2.57471166042383  4.608 -2.9197317789117
        5.712 -3.96411438759208  6.264 -4.7281887082044  7.368 -6.94671368409441  7.92 -8.45842528470557
        """,
    ),
    (
        "mcycle, box, 2",
        """
        2.4 -1.33333333333333  5.16 NA  7.92 -2.35  10.68 -3.24  13.44 -1.8  16.2 -46.6105263157895
        18.96 -95.25  21.72 -116.85
        """,
    ),
    (
        "mcycle, box, 5",
        """
        2.4 -1.34  5.16 -2.01666666666667  7.368 -2.35  10.128 -2.83  12.888 -6.8  15.648 -43.3571428571429
        17.856 -66.61875  20.616 -106.658333333333
        """,
    ),
    (
        "faithful, normal, 0.25",
        """
        1.6 54.7232833127327  1.635 54.3210049449303  1.67 53.8814922821877  1.705 53.4821892197213
        1.74 53.1588242417404  1.775 52.9184324244072  1.81 52.7601946553209  1.845 52.6931322303512
        """,
    ),
    (
        "faithful, box, 0.25",
        """
        1.6 58.3333333333333  1.67 53.5833333333333  1.74 54  1.81 52.3809523809524  1.88 52.9111111111111
        1.95 53.2619047619048  2.02 54.7407407407407  2.09 54.8965517241379
        """,
    ),
    (
        "faithful, box, 0.5",
        """
        1.635 53.025  1.67 52.7380952380952  1.705 52.6  1.74 52.9019607843137  1.81 53.1833333333333
        1.845 53.4920634920635  1.88 53.5384615384615  1.915 53.6268656716418
        """,
    ),
]

# statsmodels 0.15.0, KernelReg(y, x, "c", reg_type="lc", bw="cv_ls").fit() on the whole of `mcycle`, at some of its
# rows. The bandwidth that cross-validation chose is the one number, to the digits, that gives all 133 fits.
STATSMODELS_BANDWIDTH = 0.9138462480618
STATSMODELS = numbers(
    """
    2.4 -1.120426571119134  3.6 -1.4904352812656807  6.2 -2.3169926191537105  7.8 -2.3736911958352067
    9.6 -2.998486593902435  10.2 -3.2348906682956717  11.4 -2.944892980522883  13.8 -12.975886760251969
    14.8 -25.134301467977792
    """
)


@each_way
@pytest.mark.parametrize(("fit", "printed"), KSMOOTH, ids=[name for name, _ in KSMOOTH])
def test_r_ksmooth(fit: str, printed: str, plan: str | None) -> None:
    """R puts the quartiles of either kernel at ± bandwidth / 4, and drops the normal one beyond 4 deviations."""
    name, kernel, width = fit.split(", ")
    keys, values = (MCYCLE if name == "mcycle" else FAITHFUL).T
    queries, expected = numbers(printed).T
    if kernel == "box":
        answer = ad.attend(queries, keys, values, score=ad.Boxcar(float(width) / 2), plan=plan)
    else:
        deviation = 0.3706506 * float(width)
        near = np.abs(queries[:, None] - keys) <= 4 * deviation
        answer = ad.attend(queries, keys, values, score=ad.Gaussian(deviation), where=near, plan=plan)
    assert (answer.empty == np.isnan(expected)).all()
    close(answer.value[~answer.empty, 0], expected[~answer.empty], "fit", 1e-11, 1e-11)


@each_way
def test_statsmodels_local_constant(plan: str | None) -> None:
    queries, expected = STATSMODELS.T
    answer = ad.attend(queries, *MCYCLE.T, score=ad.Gaussian(STATSMODELS_BANDWIDTH), plan=plan)
    close(answer.value[:, 0], expected, "fit", 1e-10, 1e-10)
