"""Bandwidths by rule and by search: scale, repeated values, constant columns, weights, and what a search never does."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import gaussian_kde
from sklearn.exceptions import ConvergenceWarning

import attendb as ad
from attendb.estimators import KernelDensity, KernelSmoother
from attendb.estimators.rules import Search, choose, read_bandwidth, rows_to_leave_out, scott, search, silverman

RULES = (scott, silverman)


def column(*values: float) -> np.ndarray:
    return np.array(values)[:, None]


def test_silverman_falls_back_to_the_deviation_where_more_than_half_of_the_values_are_equal():
    assert silverman(column(1, 1, 1, 1, 2))[0] == pytest.approx(0.9 * 0.4472135955 * 5**-0.2, rel=1e-10)
    assert silverman(column(1, 1, 1, 1, 2))[0] == pytest.approx(0.2917181874, abs=1e-10)


def test_silverman_takes_the_quartiles_where_the_tails_are_long():
    x = np.concatenate([np.linspace(0, 1, 50), [1000.0]])[:, None]
    low, high = np.quantile(x, [0.25, 0.75])
    assert silverman(x)[0] == pytest.approx(0.9 * (high - low) / 1.34 * 51**-0.2, rel=1e-12)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_scott_is_that_of_scipy_in_each_column(d):
    x = np.random.default_rng(0).normal(size=(100, d)) * np.arange(1, d + 1)
    factor = gaussian_kde(x.T).factor
    np.testing.assert_allclose(scott(x), factor * x.std(0, ddof=1), rtol=1e-12)


def test_silverman_of_several_columns_has_the_factor_of_the_normal_distribution():
    x = np.random.default_rng(0).normal(size=(500, 2))
    low, high = np.quantile(x, [0.25, 0.75], axis=0)
    scale = np.minimum(x.std(0, ddof=1), (high - low) / 1.34)
    np.testing.assert_allclose(silverman(x), scale * 500 ** (-1 / 6), rtol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_rules_follow_the_scale_of_each_column(rule):
    x = np.random.default_rng(0).normal(size=(100, 2))
    np.testing.assert_allclose(rule(20 * x), 20 * rule(x), rtol=1e-12)
    np.testing.assert_allclose(rule(x * [1.0, 1000.0]), rule(x) * [1.0, 1000.0], rtol=1e-12)
    np.testing.assert_allclose(rule(x + 1e6), rule(x), rtol=1e-7)


@pytest.mark.parametrize("rule", RULES)
def test_rules_read_weights_as_counts(rule):
    rng = np.random.default_rng(1)
    x, counts = rng.normal(size=(30, 2)), rng.integers(0, 4, size=30)
    kept = counts > 0
    np.testing.assert_allclose(rule(x[kept], counts[kept].astype(float)), rule(x.repeat(counts, 0)), rtol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_weights_that_cannot_be_counts_are_refused(rule):
    with pytest.raises(ad.InputError, match=r"sums to 1, but .* counts of rows"):
        rule(column(0, 1, 2, 3), np.full(4, 0.25))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("x", [column(0.1, 0.1), column(5.0), column(*[0.1] * 7)], ids=["two", "one row", "seven"])
def test_column_without_spread_is_left_out(rule, x):
    assert rule(x).tolist() == [np.inf]


@pytest.mark.parametrize("rule", RULES)
def test_constant_column_changes_nothing_for_the_others(rule):
    x = np.random.default_rng(0).normal(size=(50, 2))
    with_constant = np.column_stack([x[:, :1], np.full(50, 0.1), x[:, 1:]])
    found = rule(with_constant)
    assert np.isinf(found[1])
    np.testing.assert_array_equal(found[[0, 2]], rule(x))


@pytest.mark.parametrize("bandwidth", ["loo", "scott", "silverman"])
@pytest.mark.parametrize("local", ["constant", "linear"])
def test_smoother_without_any_spread_predicts_the_mean(bandwidth, local):
    model = KernelSmoother(bandwidth=bandwidth, local=local).fit(column(0.1, 0.1, 0.1), [1.0, 2.0, 6.0])
    assert model.bandwidth_.tolist() == [np.inf]
    np.testing.assert_allclose(model.predict(column(0.1, 7.0)), [3.0, 3.0], rtol=1e-15)
    assert KernelSmoother(bandwidth=bandwidth, local=local).fit([[4.0]], [9.0]).predict([[0.0]]).tolist() == [9.0]


@pytest.mark.parametrize("bandwidth", ["loo", "scott", "silverman"])
@pytest.mark.parametrize("local", ["constant", "linear"])
def test_smoother_leaves_a_constant_column_out(bandwidth, local):
    rng = np.random.default_rng(0)
    x, y = rng.uniform(size=(60, 1)), rng.normal(size=60)
    alone = KernelSmoother(bandwidth=bandwidth, local=local).fit(x, y)
    beside = KernelSmoother(bandwidth=bandwidth, local=local).fit(np.column_stack([x, np.full(60, 3.0)]), y)
    assert np.isinf(beside.bandwidth_[1])
    np.testing.assert_allclose(beside.predict(np.column_stack([x, x])), alone.predict(x), rtol=1e-12)


@pytest.mark.parametrize("bandwidth", ["loo", "scott", "silverman"])
def test_density_names_the_column_that_has_no_spread(bandwidth):
    import pandas as pd

    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [0.1, 0.1, 0.1]})
    with pytest.raises(ad.InputError, match=r"column 'b' has the same value in every row"):
        KernelDensity(bandwidth=bandwidth).fit(frame)


@pytest.mark.parametrize(
    "bandwidth", [0, -1.0, np.nan, np.inf, [1.0, 0.0], [1.0, np.nan]], ids=["0", "-1", "nan", "inf", "one 0", "one nan"]
)
@pytest.mark.parametrize("model", [KernelSmoother, KernelDensity])
def test_impossible_bandwidths_are_refused(model, bandwidth):
    with pytest.raises(ad.InputError, match="bandwidth must be > 0 and finite"):
        model(bandwidth=bandwidth).fit(np.random.default_rng(0).normal(size=(9, 2)), np.arange(9.0))


@pytest.mark.parametrize("bandwidth", [None, True, [[1.0], ["x"]], object()])
def test_what_is_no_bandwidth_is_refused(bandwidth):
    with pytest.raises((ad.KindError, ad.InputError), match="bandwidth must be a number"):
        read_bandwidth(bandwidth, 1)


def test_bandwidth_is_one_number_or_one_a_column():
    for given in (0.5, np.array(0.5), [0.5], np.array([0.5, 0.5])):
        assert read_bandwidth(given, 2).tolist() == [0.5, 0.5]  # type: ignore[union-attr]
    with pytest.raises(ad.InputError, match="bandwidth has length 3 but X has 2 columns"):
        read_bandwidth([1, 2, 3], 2)
    with pytest.raises(ad.InputError, match=r"bandwidth has shape \(2, 2\) but X has 2 columns"):
        read_bandwidth(np.eye(2) + 1, 2)
    with pytest.raises(ad.InputError, match="no rule 'scot' for a bandwidth: take one of scott, silverman, loo"):
        read_bandwidth("scot", 1)


def test_given_bandwidth_is_never_changed():
    given = np.array([0.5, 2.0])
    model = KernelSmoother(bandwidth=given).fit(np.random.default_rng(0).normal(size=(9, 2)), np.arange(9.0))
    model.bandwidth_[0] = 7.0
    assert given.tolist() == [0.5, 2.0] and model.bandwidth is given


def test_nan_is_never_chosen():
    assert choose([3.0, np.nan, 1.0]) == 2
    assert choose([np.inf, 2.0, 2.0]) == 1
    for losses in ([], [np.nan, np.inf]):
        with pytest.raises(ad.InputError, match="found none at which every row has another within reach"):
            choose(losses)


def bowl(*wanted: float):
    """A loss whose least value lies at these bandwidths."""

    def loss(h: np.ndarray) -> tuple[float, int]:
        return 1.0 + float(np.square(np.log(h / np.array(wanted))).sum()), 0

    return loss


def run(loss, d: int, most: int = 150, start: float = 1.0) -> Search:
    return search(loss, np.full(d, start), np.full(d, 1e-6), np.full(d, 1e3), most)


@pytest.mark.parametrize("wanted", [(0.3,), (1e-4,), (200.0,), (0.3, 5.0), (0.3, 5.0, 40.0)])
def test_search_finds_the_least_loss(wanted):
    found = run(bowl(*wanted), len(wanted))
    np.testing.assert_allclose(found.bandwidth, wanted, rtol=0.05)
    assert (found.bandwidths > 0).all()


def test_search_ends_at_the_bounds():
    assert run(lambda h: (float(h[0]), 0), 1).bandwidth[0] == pytest.approx(1e-6, rel=1e-6)
    assert run(lambda h: (-float(h[0]), 0), 1).bandwidth[0] == pytest.approx(1e3, rel=1e-6)


def test_search_of_many_columns_shares_one_factor():
    found = run(bowl(0.3, 0.3, 0.3, 0.3), 4)
    assert np.ptp(found.bandwidths, axis=1).max() == 0
    np.testing.assert_allclose(found.bandwidth, 0.3, rtol=1e-2)


def test_search_looks_at_two_valleys():
    """The deeper one is narrow: of the factors that are tried first, the best lies in the other."""

    def loss(h: np.ndarray) -> tuple[float, int]:
        t = np.log2(h[0])
        return float(np.minimum(0.1 * (t + 4) ** 2, 2 * (t - 0.5) ** 2 - 0.3)), 0

    assert run(loss, 1).bandwidth[0] == pytest.approx(2**0.5, rel=1e-2)


def test_search_passes_over_nan_and_empty_windows():
    def loss(h: np.ndarray) -> tuple[float, int]:
        if h[0] < 0.5:
            return -100.0, 2  # two rows saw nobody
        return (np.nan if 3 < h[0] < 5 else float(np.log(h[0] / 0.7) ** 2)), 0

    found = run(loss, 1)
    assert found.bandwidth[0] == pytest.approx(0.7, rel=1e-2)
    rejected = found.empty > 0
    assert rejected.any() and np.isinf(found.losses[rejected]).all() and set(found.empty[rejected]) == {2}
    with pytest.raises(ad.InputError, match="every row has another within reach"):
        _ = run(lambda h: (1.0, 3), 1).bandwidth


def test_search_that_must_widen_does():
    """Every bandwidth that is tried first leaves some row alone."""
    found = run(lambda h: (float(h[0]), int(h[0] < 100)), 1)
    assert 100 <= found.bandwidth[0] <= 101


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("most", [3, 14])
def test_search_stops_at_its_cap_with_a_warning(d, most):
    with pytest.warns(ConvergenceWarning, match=f"stopped after {most} evaluations"):
        found = run(bowl(*[0.3] * d), d, most)
    assert len(found.losses) == most and found.bandwidth[0] == found.bandwidths[found.losses.argmin(), 0]


@pytest.mark.parametrize("most", [0, -1, 2.5, True])
def test_cap_is_a_whole_number(most):
    for model in (KernelSmoother, KernelDensity):
        with pytest.raises(ad.InputError, match="max_evaluations must be a whole number"):
            model(max_evaluations=most).fit(column(0, 1), [0, 1])


def test_large_tables_are_asked_by_a_sample_where_no_series_serves():
    assert len(rows_to_leave_out(6_000, all_at_once=False)) == 6_000
    some = rows_to_leave_out(100_000, all_at_once=False)
    assert len(some) == len(set(some)) == 2_000 and some.max() < 100_000
    assert len(rows_to_leave_out(1_000_000, all_at_once=True)) == 1_000_000
