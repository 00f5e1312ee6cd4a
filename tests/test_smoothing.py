"""KernelSmoother against naive sums, R, statsmodels and scikit-learn's own checks; its band by simulation."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
import polars
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import attendb as ad
from attendb.errors import InputError, KindError
from attendb.estimators import KernelDensity, KernelSmoother

KERNELS: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # of differences in bandwidths (n, m, d)
    "gaussian": lambda u: np.exp(-0.5 * (u**2).sum(-1)),
    "laplacian": lambda u: np.exp(-np.abs(u).sum(-1)),
    "euclidean": lambda u: np.exp(-np.sqrt((u**2).sum(-1))),
    "boxcar": lambda u: ((u**2).sum(-1) <= 1).astype(float),
    "triangular": lambda u: np.clip(1 - np.sqrt((u**2).sum(-1)), 0, None),
    "epanechnikov": lambda u: np.clip(1 - (u**2).sum(-1), 0, None),
}
LOCAL = ("constant", "linear")


def naive_weights(q, x, h, kernel="gaussian", local="constant", w=None):
    """l (n, m) by least squares at one query after another; no code is shared with the library."""
    q, x = np.atleast_2d(q).astype(float), np.atleast_2d(x).astype(float)
    k = KERNELS[kernel]((q[:, None] - x[None]) / h) * (1 if w is None else w)
    alpha = k / k.sum(1, keepdims=True)
    if local == "constant":
        return alpha
    found = np.empty_like(alpha)
    for i, row in enumerate(alpha):
        design = np.column_stack([np.ones(len(x)), x - q[i]])
        root = np.sqrt(row)
        found[i] = (np.linalg.pinv(root[:, None] * design) * root)[0]
    return found


def wave(m: int, d: int = 1, seed: int = 0, noise: float = 0.3):
    """Rows on a unit cube, and a smooth function of them with noise."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(m, d))
    return x, np.sin(4 * x).sum(1) + noise * rng.normal(size=m)


def fit(x, y, h, kernel="gaussian", local="constant", **options) -> KernelSmoother:
    return KernelSmoother(kernel, h, local=local).fit(x, y, **options)


@pytest.mark.parametrize("local", LOCAL)
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kernel", KERNELS)
def test_curve_and_band_are_those_of_the_weights(kernel, d, local):
    x, y = wave(150, d)
    h = np.array([0.4, 0.5, 0.6])[:d] * (2 if kernel in ("boxcar", "triangular", "epanechnikov") else 1)
    places = np.random.default_rng(1).uniform(0.2, 0.8, size=(20, d))
    model = fit(x, y, h, kernel, local)
    weights = naive_weights(places, x, h, kernel, local)
    np.testing.assert_allclose(model.predict(places), weights @ y, rtol=1e-6, atol=1e-6)
    others = [np.delete(np.arange(150), i) for i in range(150)]
    left_out = [naive_weights(x[i], x[o], h, kernel, local)[0] for i, o in enumerate(others)]
    residuals = [y[i] - row @ y[o] for i, (o, row) in enumerate(zip(others, left_out, strict=True))]
    sigma = np.sqrt(np.square(residuals).sum() / sum(1 + (row**2).sum() for row in left_out))
    half = 1.6448536269514722 * sigma * np.sqrt((weights**2).sum(1))
    band = model.confidence_band(places, 0.9)
    np.testing.assert_allclose(band, np.stack([weights @ y - half, weights @ y + half], 1), atol=2e-6)


def test_class_of_a_score_and_a_function_of_yours_are_kernels():
    x, y = wave(50)
    expected = fit(x, y, 0.1, "epanechnikov").predict(x)
    np.testing.assert_array_equal(fit(x, y, 0.1, ad.Epanechnikov).predict(x), expected)
    gaussian = fit(x, y, 0.1)
    yours = fit(x, y, 0.1, lambda h: lambda q, k: -0.5 * ((q - k.mT) / float(h[0])) ** 2)
    np.testing.assert_allclose(yours.predict(x), gaussian.predict(x), rtol=1e-12)
    np.testing.assert_allclose(yours.confidence_band(x), gaussian.confidence_band(x), rtol=1e-12)


def test_motorcycle_ends_are_those_of_r():
    """R 4.2.2, ksmooth on MASS::mcycle (Silverman 1985): the fits whose windows hold only these rows of the table.

    "normal" is a Gaussian of standard deviation 0.3706506 · bandwidth, cut at 4 of them; "box" reaches bandwidth / 2.
    """
    first = [[2.4], [2.6], [3.2], [3.6], [4.0]], [0, -1.3, -2.7, 0, -2.7]
    last = [[55], [55], [55.4], [57.6]], [-2.7, 10.7, -2.7, 10.7]
    found = fit(*first, 0.3706506 * 2).predict([[2.4], [2.952]])
    np.testing.assert_allclose(found, [-1.04659605618243, -1.29088842317971], rtol=1e-7)
    found = fit(*last, 0.3706506 * 2).predict([[57.048], [57.6]])
    np.testing.assert_allclose(found, [9.0899816054808, 10.5106604931708], rtol=1e-7)
    np.testing.assert_allclose(fit(*last, 5 / 2, "boxcar").predict([[57.048], [57.6]]), [4, 4], rtol=1e-12)


@pytest.mark.parametrize(("local", "name"), [("constant", "lc"), ("linear", "ll")])
@pytest.mark.parametrize("d", [1, 2])
def test_fits_are_those_of_statsmodels(d, local, name):
    regression = pytest.importorskip("statsmodels.nonparametric.kernel_regression")
    x, y = wave(80, d)
    h = np.array([0.2, 0.3])[:d]  # no window so thin that a plane follows single rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, _ = regression.KernelReg(y, x, "c" * d, reg_type=name, bw=h).fit()
    np.testing.assert_allclose(fit(x, y, h, local=local).predict(x), np.ravel(expected), rtol=1e-5)


@pytest.mark.parametrize(("local", "name"), [("constant", "lc"), ("linear", "ll")])
def test_bandwidth_left_one_out_is_that_of_statsmodels(local, name):
    regression = pytest.importorskip("statsmodels.nonparametric.kernel_regression")
    x, y = wave(100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = regression.KernelReg(y, x, "c", reg_type=name, bw="cv_ls").bw
    found = KernelSmoother(local=local).fit(x, y)
    np.testing.assert_allclose(found.bandwidth_, expected, rtol=1e-2)


@pytest.mark.parametrize("local", LOCAL)
@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "epanechnikov", "boxcar"])
def test_no_bandwidth_of_a_grid_predicts_the_other_rows_better(kernel, local):
    x, y = wave(120, noise=0.5)
    model = KernelSmoother(kernel, local=local).fit(x, y)
    assert model.search_ is not None
    least = model.search_.losses.min()
    assert np.mean((y - model.leave_one_out()) ** 2) == pytest.approx(least, rel=1e-9)
    for h in np.geomspace(0.03, 3, 40):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # windows without a row
            error = np.mean((y - fit(x, y, h, kernel, local).leave_one_out()) ** 2)
        assert np.isnan(error) or error >= least * (0.98 if kernel == "boxcar" else 0.9999)  # a boxcar's error jumps


def test_rows_left_out_in_turn_are_predicted_by_the_others():
    found = fit([[0], [1], [3]], [0, 1, 5], 1.0).leave_one_out()
    np.testing.assert_allclose(found, [1.07194484, 0.91212762, 0.92414182], atol=1e-8)
    assert np.mean((found - [0, 1, 5]) ** 2) == pytest.approx(5.9231357329, abs=1e-9)


@pytest.mark.parametrize("h", [1e-3, 1e-8])
def test_row_is_left_out_by_its_position_and_not_by_distance_0(h):
    assert fit([[0], [0], [1]], [2, 4, 9], h).leave_one_out()[:2].tolist() == [4.0, 2.0]


def test_row_without_another_in_reach_is_counted_and_never_chosen():
    x, y = np.array([[0.0], [0.5], [10.0]]), [1, 2, 9]
    with pytest.warns(UserWarning, match="1 of 3 rows have no row of the table within the bandwidth"):
        found = fit(x, y, 1.0, "boxcar").leave_one_out()
    assert found[:2].tolist() == [2.0, 1.0] and np.isnan(found[2])
    searched = KernelSmoother("boxcar").fit(x, y).search_
    assert searched is not None
    alone = searched.empty > 0
    assert alone.any() and np.isinf(searched.losses[alone]).all() and searched.bandwidth[0] >= 9.5


def test_pure_noise_gets_a_wide_bandwidth_and_a_sharp_step_a_narrow_one():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(300, 1))
    noise = KernelSmoother().fit(x, rng.normal(size=300))
    step = KernelSmoother().fit(x, (x[:, 0] > 0.5) + 0.01 * rng.normal(size=300))
    assert noise.bandwidth_[0] > 0.2 and step.bandwidth_[0] < 0.01


def test_column_that_says_nothing_gets_a_wide_bandwidth():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(300, 2))
    model = KernelSmoother().fit(x, np.sin(6 * x[:, 0]) + 0.3 * rng.normal(size=300))
    assert model.bandwidth_[1] > 5 * model.bandwidth_[0]


@pytest.mark.parametrize("local", LOCAL)
def test_answers_do_not_depend_on_the_units(local):
    x, y = wave(100, 2)
    metres, millimetres = (KernelSmoother(local=local).fit(c * x, y) for c in (1.0, 1000.0))
    np.testing.assert_allclose(millimetres.bandwidth_, 1000 * metres.bandwidth_, rtol=1e-6)
    fixed = fit(x, y, [0.1, 0.3], local=local).predict(x)
    np.testing.assert_allclose(fit(20 * x, y, [2.0, 6.0], local=local).predict(20 * x), fixed, rtol=1e-9)


@pytest.mark.parametrize("far", [100.0, 1e3, 1e5, 1e7])
def test_query_far_from_all_rows_takes_the_nearest(far):
    assert fit([[0], [1]], [10, 20], 1.0).predict([[far]]).tolist() == [20.0]
    assert fit([[0], [1], [2]], [0, 1, 4], 0.1, local="linear").predict([[far]])[0] == pytest.approx(4.0)


@pytest.mark.parametrize("local", LOCAL)
def test_compact_kernel_that_reaches_no_row_gives_nan_and_one_warning(local):
    model = fit([[0], [1], [2]], np.array([0, 1, 1]), 0.5, "epanechnikov", local)
    with pytest.warns(UserWarning, match="1 of 2 rows have no row") as caught:
        found = model.predict([[100], [1]])
    assert len(caught) == 1 and found.dtype == np.float64
    assert np.isnan(found[0]) and found[1] == 1.0


def test_whole_numbers_as_outcomes_give_decimals_and_nan():
    model = fit([[0], [1], [2]], np.array([0, 1, 2]), 0.5, "boxcar")
    with pytest.warns(UserWarning, match="1 of 3 rows have no row") as caught:
        found = model.predict([[100], [1], [0.5]])
    assert len(caught) == 1 and found.dtype == np.float64
    np.testing.assert_array_equal(found, [np.nan, 1.0, 0.5])


def test_plane_is_fitted_without_bias_up_to_its_edge():
    x = np.random.default_rng(0).uniform(size=(200, 2))
    y = 3 + 2 * x[:, 0] - x[:, 1]
    corners = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    np.testing.assert_allclose(fit(x, y, 0.3, local="linear").predict(corners), [3, 4, 2], atol=1e-6)
    assert abs(fit(x, y, 0.3).predict(corners) - [3, 4, 2]).max() > 0.2


def test_thin_window_gives_the_weighted_mean_and_equal_rows_give_theirs():
    """Two rows would carry a line anywhere; five equal ones give no slope at all."""
    x, y = [[0.0], [0.3]], [0.0, 1.0]
    assert fit(x, y, 0.1, local="linear").predict([[0.6]]) == pytest.approx(fit(x, y, 0.1).predict([[0.6]]), rel=1e-12)
    equal = fit([[2.0]] * 5, [1, 2, 3, 4, 5], 0.1, local="linear")
    np.testing.assert_allclose(equal.predict([[2.0], [2.3], [9.0]]), 3.0, rtol=1e-9)


def test_table_too_wide_for_a_line_is_refused():
    x = np.concatenate([np.linspace(0, 1, 50), [1e7]])[:, None]
    with pytest.raises(ad.InputError, match="local-linear answer keeps its digits only up to"):
        fit(x, x[:, 0], 0.1, local="linear").predict([[0.5]])


@pytest.mark.parametrize("bandwidth", ["loo", "scott", 0.1])
@pytest.mark.parametrize("local", LOCAL)
@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "epanechnikov", "boxcar"])
def test_weights_are_rows_repeated(kernel, local, bandwidth):
    x, y = wave(60)
    counts = np.random.default_rng(3).integers(0, 4, size=60)
    places = np.linspace(0.1, 0.9, 9)[:, None]
    weighted = KernelSmoother(kernel, bandwidth, local=local).fit(x, y, sample_weight=counts)
    repeated = KernelSmoother(kernel, bandwidth, local=local).fit(x.repeat(counts, 0), y.repeat(counts))
    if bandwidth == "loo":  # repeated rows know each other, so the best is 0: only what was tried can be compared
        assert weighted.search_ is not None and repeated.search_ is not None
        np.testing.assert_allclose(weighted.search_.bandwidths[:12], repeated.search_.bandwidths[:12], rtol=1e-9)
        np.testing.assert_allclose(weighted.search_.losses[:12], repeated.search_.losses[:12], rtol=1e-4)
        return
    np.testing.assert_allclose(weighted.predict(places), repeated.predict(places), rtol=1e-6)
    np.testing.assert_allclose(weighted.confidence_band(places), repeated.confidence_band(places), rtol=1e-6)


def test_rows_of_weight_half_are_left_out_whole():
    x, y = wave(40)
    halves = fit(x, y, 0.1, sample_weight=np.full(40, 0.5))
    np.testing.assert_allclose(halves.leave_one_out(), fit(x, y, 0.1).leave_one_out(), rtol=1e-12)
    with pytest.raises(ad.InputError, match="all rows weigh 0"):
        fit(x, y, 0.1, sample_weight=np.zeros(40))


@pytest.mark.parametrize(("bad", "said"), [(np.nan, "1 NaN"), (np.inf, "1 inf")])
def test_missing_numbers_are_counted_and_named(bad, said):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [1.0, 2.0, bad]})
    with pytest.raises(ad.InputError, match=rf"X column 'b' has {said} \(first: row 2\)"):
        KernelSmoother().fit(frame, [1, 2, 3])
    with pytest.raises(ad.InputError, match=rf"y has {said} \(first: row 1\)"):
        KernelSmoother().fit(frame[["a"]], [1, bad, 3])
    model = KernelSmoother(bandwidth=1.0).fit(frame[["a"]], [1, 2, 3])
    with pytest.raises(ad.InputError, match=rf"X column 'a' has {said}"):
        model.predict(pd.DataFrame({"a": [bad]}))


def test_one_axis_and_text_are_refused_with_the_way_out():
    y = np.arange(4.0)
    frame = pd.DataFrame({"a": y, "b": [1, None, "Ulm", 3]})
    with pytest.raises(InputError, match=r"X has one axis, shape \(4,\)\. Reshape your data: X\[:, None\] is a table"):
        KernelSmoother().fit(y, y)
    with pytest.raises(InputError, match=r"Reshape your data: X\.to_frame\(\) is a table"):
        KernelDensity().fit(frame["a"])
    for kind in (pd.DataFrame, polars.DataFrame):
        with pytest.raises(KindError, match="X column 'b' holds 'Ulm' in row 2: give numbers, or leave the column out"):
            KernelSmoother().fit(kind({"a": y, "b": ["1", None, "Ulm", "3"]}), y)
    with pytest.raises(KindError, match="X column 'b' holds 'Ulm' in row 2"):
        KernelDensity().fit(frame)


def test_no_rows_are_an_error_to_fit_and_an_empty_answer_to_predict():
    with pytest.raises(ValueError, match="minimum of 1"):
        KernelSmoother().fit(np.empty((0, 2)), [])
    for local in LOCAL:
        model = fit(*wave(30, 2), 0.1, local=local)
        assert model.predict(np.empty((0, 2))).shape == (0,)
        assert model.confidence_band(np.empty((0, 2))).shape == (0, 2)


def test_options_that_do_not_exist_are_refused():
    x, y = wave(20)
    with pytest.raises(ad.InputError, match="local must be 'constant' or 'linear', got 'cubic'"):
        KernelSmoother(local="cubic").fit(x, y)
    with pytest.raises(ad.InputError, match="no kernel 'normal': take one of gaussian, laplacian"):
        KernelSmoother("normal").fit(x, y)
    with pytest.raises(ad.KindError, match="give the class Gaussian, and bandwidth= beside"):
        KernelSmoother(ad.Gaussian(1.0)).fit(x, y)
    with pytest.raises(ad.KindError, match="kernel must be a name such as 'gaussian'"):
        KernelSmoother(3).fit(x, y)
    for level in (0, 1, 95, "x", True):
        with pytest.raises(ad.InputError, match="level must lie between 0 and 1"):
            fit(x, y, 0.1).confidence_band(x, level)


def test_tolerance_is_kept():
    x, y = wave(5_000)
    exact = fit(x, y, 0.05).predict(x)
    near = KernelSmoother(bandwidth=0.05, tol=1e-4).fit(x, y).predict(x)
    assert 0 < abs(near - exact).max() <= 1e-4 * np.ptp(y)


def test_search_by_series_finds_the_bandwidth_of_exact_sums():
    """3 000 rows: the table is large enough for the series, and small enough for all pairs in numpy."""
    x, y = wave(3_000)
    model = KernelSmoother().fit(x, y)
    assert model.search_ is not None
    for h, loss in zip(model.search_.bandwidths[::4, 0], model.search_.losses[::4], strict=True):
        kernel = np.exp(-0.5 * ((x - x.T) / h) ** 2)
        np.fill_diagonal(kernel, 0)
        expected = np.mean((y - kernel @ y / kernel.sum(1)) ** 2)
        assert loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("local", LOCAL)
def test_band_covers_the_mean_curve(local):
    """200 samples of a curve of small bias: 95 % bands cover the truth in 90 to 98 %, bands half as wide do not."""
    rng = np.random.default_rng(7)
    x = np.linspace(0, 1, 150)[:, None]
    places = np.linspace(0.05, 0.95, 19)[:, None]
    truth = np.sin(3 * places[:, 0])
    covered, narrow = [], []
    for _ in range(200):
        y = np.sin(3 * x[:, 0]) + 0.5 * rng.normal(size=150)
        low, high = fit(x, y, 0.05, local=local).confidence_band(places).T
        middle, half = (low + high) / 2, (high - low) / 2
        covered.append(abs(middle - truth) <= half)
        narrow.append(abs(middle - truth) <= half / 2)
    assert 0.90 <= np.mean(covered) <= 0.98
    assert np.mean(narrow) < 0.75
    assert np.min(np.mean(covered, 0)) > 0.88  # at every place, not only on average


def test_band_needs_rows_that_see_another():
    model = fit([[0.0], [10.0]], [1, 2], 1.0, "boxcar")
    with pytest.raises(ad.InputError, match="no row has another within reach"):
        model.confidence_band([[0.0]])


def test_plot_shows_rows_curve_and_band():
    x, y = wave(80)
    model = KernelSmoother().fit(pd.DataFrame({"temperature": x[:, 0]}), pd.Series(y, name="output"))
    figure = model.plot(level=0.9, places=50)
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("temperature", "output")
    rows, curve = axes.lines
    np.testing.assert_array_equal(rows.get_xydata(), np.column_stack([x[:, 0], y]))
    at = curve.get_xdata()
    assert len(at) == 50 and (at[0], at[-1]) == (x.min(), x.max())
    frame = pd.DataFrame({"temperature": at})
    np.testing.assert_allclose(curve.get_ydata(), model.predict(frame), rtol=1e-12)
    (band,) = axes.collections
    low, high = model.confidence_band(frame, 0.9).T
    corners = band.get_paths()[0].vertices[:, 1]
    assert corners.max() == pytest.approx(high.max()) and corners.min() == pytest.approx(low.min())
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["rows", "90 % band", "mean curve"]
    figure.savefig("/dev/null", format="png")


def test_plot_has_gaps_where_no_row_is_near_and_draws_a_sample_of_many_rows():
    x = np.concatenate([np.linspace(0, 1, 3_000), np.linspace(9, 10, 3_000)])[:, None]
    figure = fit(x, x[:, 0], 0.5, "boxcar").plot(places=101)
    rows, curve = figure.axes[0].lines
    assert np.isnan(curve.get_ydata()[50]) and len(rows.get_xdata()) == 5_000
    assert rows.get_label() == "5,000 of 6,000 rows"


def test_plot_is_of_one_column():
    with pytest.raises(ad.InputError, match="plot draws one column but X has 2"):
        fit(*wave(20, 2), 0.1).plot()


@parametrize_with_checks(
    [
        KernelSmoother(),
        KernelSmoother("epanechnikov", 3.0, local="linear"),
    ]
)
def test_is_an_estimator_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e160, 1e300])
@pytest.mark.parametrize("local", LOCAL)
def test_the_size_of_y_does_not_change_the_bandwidth_nor_the_band(size, local):
    x = np.linspace(0, 1, 30)[:, None]
    y = np.sin(6 * x[:, 0])
    model, other = (KernelSmoother(local=local).fit(x, values) for values in (y, y * size))
    assert other.bandwidth_ == pytest.approx(model.bandwidth_, rel=1e-9)
    assert other.confidence_band(x) / size == pytest.approx(model.confidence_band(x), rel=1e-6)
