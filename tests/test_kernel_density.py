"""KernelDensity against scikit-learn, statsmodels, scipy and integrals; its draws and its search."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.neighbors import KernelDensity as Peer
from sklearn.utils.estimator_checks import parametrize_with_checks

import attendb as ad
from attendb.estimators import KernelDensity
from attendb.estimators.kernels import BY_NAME

PEERS = {
    "gaussian": "gaussian",
    "boxcar": "tophat",
    "epanechnikov": "epanechnikov",
    "euclidean": "exponential",
    "triangular": "linear",
}


def rows(m: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(m, d))


@pytest.mark.parametrize("d", [1, 2, 3, 5])
@pytest.mark.parametrize("kernel", PEERS)
def test_log_densities_are_those_of_scikit_learn(kernel, d):
    x, places, w = rows(80, d), rows(30, d, 1), np.random.default_rng(2).uniform(0.1, 3, size=80)
    for weights in (None, w):
        ours = KernelDensity(kernel, 1.3).fit(x, sample_weight=weights)
        peer = Peer(kernel=PEERS[kernel], bandwidth=1.3).fit(x, sample_weight=weights)
        np.testing.assert_allclose(ours.score_samples(places), peer.score_samples(places), rtol=1e-9, atol=1e-9)
        finite = places[np.isfinite(peer.score_samples(places))]
        assert ours.score(finite) == pytest.approx(peer.score(finite), rel=1e-9)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_densities_of_one_bandwidth_a_column_are_those_of_statsmodels(d):
    density = pytest.importorskip("statsmodels.nonparametric.kernel_density")
    x, places, h = rows(60, d), rows(20, d, 1), [0.3, 0.6, 0.9][:d]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = density.KDEMultivariate(x, "c" * d, bw=h).pdf(places)
    found = np.exp(KernelDensity(bandwidth=h).fit(x).score_samples(places))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_laplacian_is_that_of_scipy():
    places = rows(9, 2)
    expected = stats.laplace.logpdf(places, loc=1.0, scale=[0.5, 2.0]).sum(1)
    found = KernelDensity("laplacian", [0.5, 2.0]).fit([[1.0, 1.0]]).score_samples(places)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("kernel", BY_NAME)
def test_density_integrates_to_one_and_the_variance_of_its_kernel_is_as_stated(kernel, d):
    h = np.array([0.5, 0.8])[:d]
    reach = h * (1 if kernel in ("boxcar", "triangular", "epanechnikov") else 25)
    axes = [np.linspace(-r, r, 1_201) for r in reach]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, d)
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    density = np.exp(KernelDensity(kernel, h).fit(np.zeros((1, d))).score_samples(grid))
    assert density.sum() * cell == pytest.approx(1, abs=5e-3)
    variance = BY_NAME[kernel].variance
    assert variance is not None
    np.testing.assert_allclose(density @ grid**2 * cell / h**2, variance(d), rtol=5e-3)


def test_tiny_bandwidth_gives_a_log_density_above_0():
    x = np.arange(1000.0)[:, None]
    found = np.exp(KernelDensity(bandwidth=1e-5).fit(x).score_samples([[7.0]]))
    assert found[0] == pytest.approx(39.8942280401, rel=1e-10)


def test_compact_kernel_that_reaches_no_row_gives_minus_infinity():
    found = KernelDensity("boxcar", 1.0).fit([[0.0]]).score_samples([[9.0], [0.0]])
    np.testing.assert_allclose(found, [-np.inf, -np.log(2)], rtol=1e-12)


@pytest.mark.parametrize("kernel", BY_NAME)
def test_draws_follow_the_density(kernel):
    model = KernelDensity(kernel, 0.5).fit([[0.0], [2.0]], sample_weight=[1, 3])
    drawn = model.sample(4_000, random_state=0)
    assert drawn.shape == (4_000, 1)
    places = np.linspace(-12, 14, 20_001)
    cumulated = np.cumsum(np.exp(model.score_samples(places[:, None]))) * (places[1] - places[0])
    assert stats.kstest(drawn[:, 0], lambda x: np.interp(x, places, cumulated)).pvalue > 0.01
    assert stats.kstest(drawn[:, 0] + 0.2, lambda x: np.interp(x, places, cumulated)).pvalue < 1e-6


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("kernel", BY_NAME)
def test_draws_in_several_columns_have_the_spread_of_the_kernel(kernel, d):
    h = np.array([0.5, 1.0, 3.0])[:d]
    drawn = KernelDensity(kernel, h).fit(np.ones((1, d))).sample(20_000, random_state=1)
    variance = BY_NAME[kernel].variance
    assert variance is not None
    np.testing.assert_allclose(np.cov((drawn - 1).T / h[:, None]), variance(d) * np.eye(d), atol=0.06 * variance(d))


def test_draws_can_be_repeated():
    model = KernelDensity(bandwidth=1.0).fit(rows(9, 2))
    np.testing.assert_array_equal(model.sample(5, random_state=3), model.sample(5, random_state=3))
    assert model.sample(0).shape == (0, 2) and model.sample().shape == (1, 2)
    for n in (-1, 2.5, True):
        with pytest.raises(ad.InputError, match="n_samples must be a whole number"):
            model.sample(n)


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "epanechnikov"])
def test_bandwidth_left_one_out_makes_the_rows_likeliest(kernel):
    x = rows(100, 1)
    model = KernelDensity(kernel, "loo").fit(x)
    assert model.search_ is not None

    def likelihood(h: float) -> float:
        others = [KernelDensity(kernel, h).fit(np.delete(x, i, 0)).score_samples(x[i : i + 1])[0] for i in range(100)]
        return float(np.mean(others))

    best = likelihood(float(model.bandwidth_[0]))
    assert -best == pytest.approx(model.search_.losses.min(), rel=1e-8)
    assert all(likelihood(h) <= best + 1e-6 for h in model.bandwidth_[0] * np.array([0.5, 0.9, 1.1, 2.0]))


def test_bandwidth_left_one_out_is_that_of_statsmodels():
    density = pytest.importorskip("statsmodels.nonparametric.kernel_density")
    x = np.concatenate([rows(60, 1), rows(60, 1, 1) / 3 + 4])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = density.KDEMultivariate(x, "c", bw="cv_ml").bw
    np.testing.assert_allclose(KernelDensity(bandwidth="loo").fit(x).bandwidth_, expected, rtol=1e-2)


def test_weights_are_rows_repeated():
    x, counts = rows(50, 2), np.random.default_rng(3).integers(0, 4, size=50)
    for bandwidth in ("scott", "silverman", 0.7):
        weighted = KernelDensity(bandwidth=bandwidth).fit(x, sample_weight=counts)
        repeated = KernelDensity(bandwidth=bandwidth).fit(x.repeat(counts, 0))
        np.testing.assert_allclose(weighted.score_samples(x), repeated.score_samples(x), rtol=1e-9)


def test_rows_that_all_repeat_another_have_no_best_bandwidth():
    x = rows(40, 1)
    with pytest.raises(ad.InputError, match="40 of 80 rows repeat another, and the narrower the kernel"):
        KernelDensity(bandwidth="loo").fit(np.concatenate([x, x]))


def test_rules_give_the_standard_deviation_of_the_kernel():
    x = rows(100, 1)
    gaussian, boxcar = (KernelDensity(kernel, "silverman").fit(x).bandwidth_[0] for kernel in ("gaussian", "boxcar"))
    assert boxcar == pytest.approx(gaussian * np.sqrt(3), rel=1e-12)


def test_bad_input_is_refused():
    with pytest.raises(ad.InputError, match=r"X column 'a' has 1 NaN \(first: row 1\)"):
        KernelDensity().fit(pd.DataFrame({"a": [1.0, np.nan, 2.0]}))
    with pytest.raises(ad.KindError, match=r"the integral of the kernel .* is not known"):
        KernelDensity(lambda h: ad.Gaussian(h)).fit(rows(9, 1))


def test_tolerance_is_kept():
    x = rows(5_000, 2)
    exact = KernelDensity(bandwidth=0.3).fit(x).score_samples(x)
    near = KernelDensity(bandwidth=0.3, tol=1e-4).fit(x).score_samples(x)
    assert 0 < abs(near - exact).max() <= 1e-4


def test_plot_shows_the_density():
    model = KernelDensity(bandwidth=0.3).fit(pd.DataFrame({"minutes": rows(60, 1)[:, 0]}))
    figure = model.plot(places=40)
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("minutes", "density")
    _, curve = axes.lines
    at = pd.DataFrame({"minutes": curve.get_xdata()})
    np.testing.assert_allclose(curve.get_ydata(), np.exp(model.score_samples(at)), rtol=1e-12)
    figure.savefig("/dev/null", format="png")
    with pytest.raises(ad.InputError, match="plot draws one column but X has 2"):
        KernelDensity().fit(rows(9, 2)).plot()


@parametrize_with_checks([KernelDensity(), KernelDensity("epanechnikov", 1.0)])
def test_is_an_estimator_of_scikit_learn(estimator, check):
    check(estimator)
