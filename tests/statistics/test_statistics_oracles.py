"""Every number against SciPy, statsmodels, brute force or a value worked out by hand."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from qkvflow.records import Curve
from qkvflow.statistics import pareto, time_to_threshold
from qkvflow.statistics.contrast import holm, paired, welch
from qkvflow.statistics.effects import (
    clopper_pearson,
    detectable_difference,
    hedges_g,
    improvement,
    small_sample_correction,
)
from qkvflow.statistics.intervals import t_limits
from qkvflow.statistics.noncentral import (
    power,
)
from qkvflow.statistics.ranks import mann_whitney, wilcoxon

# SciPy's results have fields that its annotations do not know.
stats: Any = scipy.stats

# Losses of two models on five seeds; differences -0.1, -0.2, 0.1, -0.3, -0.5.
A = [1.9, 2.0, 2.2, 1.8, 1.7]
B = [2.0, 2.2, 2.1, 2.1, 2.2]


def samples(n_a: int, n_b: int, trial: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng([n_a, n_b, trial])
    return generator.normal(2.0, 0.1, n_a), generator.normal(2.05, 0.3, n_b)


def test_paired_t_by_hand():
    # mean -0.2; squared deviations 0.01 + 0 + 0.09 + 0.01 + 0.09 = 0.2; sd = sqrt(0.05);
    # standard error = sqrt(0.01) = 0.1; t = -2 on 4 degrees of freedom. With 4 degrees of freedom
    # the tail has a closed form: p = 1 - s (3 - s^2) / 2 with s = t / sqrt(4 + t^2).
    contrast = paired(A, B)
    assert contrast.estimate == pytest.approx(-0.2)
    assert contrast.standard_error == pytest.approx(0.1)
    assert contrast.t == pytest.approx(-2.0)
    s = 2 / math.sqrt(8)
    assert contrast.p == pytest.approx(1 - s * (3 - s**2) / 2)
    assert contrast.p == pytest.approx(0.116117, abs=1e-6)
    # t(0.975, 4) = 2.776445: the interval is -0.2 -+ 0.2776445.
    assert contrast.limits(0.95) == pytest.approx((-0.4776445, 0.0776445), abs=1e-6)


@pytest.mark.parametrize("trial", range(4))
@pytest.mark.parametrize(("n_a", "n_b"), [(3, 3), (5, 5), (5, 8), (20, 12)])
def test_t_tests_against_scipy(n_a: int, n_b: int, trial: int):
    a, b = samples(n_a, n_b, trial)
    ours, theirs = welch(a, b), stats.ttest_ind(a, b, equal_var=False)
    assert (ours.t, ours.df, ours.p) == pytest.approx(
        (theirs.statistic, theirs.df, theirs.pvalue), rel=1e-10
    )
    expected = theirs.confidence_interval(0.9)
    assert ours.limits(0.9) == pytest.approx((expected.low, expected.high), rel=1e-10)
    if n_a == n_b:
        ours, theirs = paired(a, b), stats.ttest_rel(a, b)
        assert (ours.t, ours.p) == pytest.approx((theirs.statistic, theirs.pvalue), rel=1e-10)
        expected = theirs.confidence_interval(0.95)
        assert ours.limits(0.95) == pytest.approx((expected.low, expected.high), rel=1e-10)


@pytest.mark.parametrize("n", [3, 5, 12])
def test_t_interval_against_scipy(n: int):
    a, _ = samples(n, n, 0)
    expected = stats.t.interval(0.95, n - 1, loc=a.mean(), scale=stats.sem(a))
    assert t_limits(a, 0.95) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("margin", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("n", [3, 5, 10])
def test_tost_against_statsmodels(n: int, margin: float):
    weightstats = pytest.importorskip("statsmodels.stats.weightstats")
    a, b = samples(n, n, 1)
    p, (_, p_lower, _), (_, p_upper, _) = weightstats.ttost_paired(a, b, -margin, margin)
    assert paired(a, b).tost(margin) == pytest.approx((p_lower, p_upper), rel=1e-10)
    assert max(paired(a, b).tost(margin)) == pytest.approx(p, rel=1e-10)
    p, (_, p_lower, _), (_, p_upper, _) = weightstats.ttost_ind(
        a, b, -margin, margin, usevar="unequal"
    )
    assert welch(a, b).tost(margin) == pytest.approx((p_lower, p_upper), rel=1e-10)


def test_tost_rejects_exactly_when_the_interval_is_inside_the_margin():
    generator = np.random.default_rng(0)
    contrast = paired(generator.normal(2, 0.01, (500, 5)), generator.normal(2, 0.01, (500, 5)))
    low, high = contrast.limits(0.90)
    inside = (low > -0.01) & (high < 0.01)
    rejected = np.maximum(*contrast.tost(0.01)) < 0.05
    assert 0 < inside.sum() < 500
    np.testing.assert_array_equal(inside, rejected)


def test_holm_by_hand():
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1 = 0.04, 0.06, 0.06, 0.04, then never falling.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert holm([]).size == 0


@pytest.mark.parametrize("size", [1, 2, 5, 10, 28])
def test_holm_against_statsmodels(size: int, monkeypatch: pytest.MonkeyPatch):
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    # `multipletests` collects the garbage of the whole process at every call.
    monkeypatch.setattr("gc.collect", lambda: 0)
    generator = np.random.default_rng(size)
    for scale in (0.01, 0.1, 1.0):
        # Two decimals: ties are common.
        p = np.round(scale * generator.uniform(size=size), 2)
        assert holm(p) == pytest.approx(multitest.multipletests(p, method="holm")[1], abs=1e-12)


def test_holm_works_along_the_last_axis():
    p = np.random.default_rng(0).uniform(size=(7, 10))
    np.testing.assert_allclose(holm(p), [holm(row) for row in p])


def test_wilcoxon_by_hand():
    # |differences| in tenths 1, 2, 1, 3, 5: ranks 1.5, 3, 1.5, 4, 5; the positive one has 1.5.
    # Of 32 sign patterns, the positive sum is at most 1.5 in {}, {1.5}, {1.5}: p = 2 * 3 / 32.
    test = wilcoxon([-1.0, -2.0, 1.0, -3.0, -5.0])
    assert (test.statistic, test.p, test.smallest_p) == (1.5, 6 / 32, 2 / 32)
    # Zeros are left out; nothing is left to speak against the null.
    assert wilcoxon([0.0, 0.0, 0.0]).p == 1


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=9))
def test_wilcoxon_against_all_sign_patterns(differences: list[int]):
    kept = [d for d in differences if d]
    test = wilcoxon(differences)
    ranks = stats.rankdata(np.abs(kept)) if kept else np.zeros(0)
    sums = np.array([np.dot(ranks, signs) for signs in itertools.product([0, 1], repeat=len(kept))])
    observed = ranks[np.array(kept, dtype=int) > 0].sum()
    tails = (sums <= observed).mean(), (sums >= observed).mean()
    assert test.statistic == observed
    assert test.p == pytest.approx(min(1, 2 * min(tails)))


@pytest.mark.parametrize("n", [3, 5, 12, 30])
def test_rank_tests_against_scipy(n: int):
    for trial in range(5):
        a, b = samples(n, n + 2, trial)
        ours, theirs = wilcoxon(a - b[:n]), stats.wilcoxon(a - b[:n], method="exact")
        # SciPy's two-sided statistic is the smaller of the two rank sums.
        smaller = min(ours.statistic, n * (n + 1) / 2 - ours.statistic)
        assert (smaller, ours.p) == pytest.approx((theirs.statistic, theirs.pvalue))
        ours = mann_whitney(a.tolist(), b.tolist())
        theirs = stats.mannwhitneyu(a, b, method="exact")
        assert (ours.statistic, ours.p) == pytest.approx((theirs.statistic, theirs.pvalue))


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
)
def test_mann_whitney_against_all_arrangements(a: list[int], b: list[int]):
    ranks = stats.rankdata([*a, *b])
    sums = np.array([sum(c) for c in itertools.combinations(ranks, len(a))])
    observed = ranks[: len(a)].sum()
    tails = (sums <= observed).mean(), (sums >= observed).mean()
    test = mann_whitney([float(x) for x in a], [float(x) for x in b])
    assert test.p == pytest.approx(min(1, 2 * min(tails)))
    couples = [(x > y) + (x == y) / 2 for x in a for y in b]
    assert test.statistic == pytest.approx(sum(couples))


def test_smallest_p_of_five_pairs_cannot_be_significant():
    test = wilcoxon([-5.0, -4.0, -3.0, -2.0, -1.0])
    assert test.p == test.smallest_p == 1 / 16


@pytest.mark.parametrize("alpha", [0.05, 0.005])
@pytest.mark.parametrize("n", [3, 5, 20])
def test_detectable_difference_against_statsmodels(n: int, alpha: float):
    power_module = pytest.importorskip("statsmodels.stats.power")
    a, b = samples(n, n, 2)
    ours = detectable_difference(paired(a, b), alpha=alpha, power=0.8)
    effect = ours / np.std(a - b, ddof=1)
    # One tail: statsmodels' two-sided power is NaN where SciPy's `nct` is, and the other tail
    # holds less than 1e-6 here.
    theirs = power_module.TTestPower().power(effect, n, alpha / 2, alternative="larger")
    assert theirs == pytest.approx(0.8, abs=1e-6)
    solved = power_module.TTestPower().solve_power(
        nobs=n, alpha=alpha / 2, power=0.8, alternative="larger"
    )
    assert effect == pytest.approx(solved, rel=1e-5)


def test_power_at_no_difference_is_the_level():
    assert power(0.0, 4.0, 0.05) == pytest.approx(0.05)
    # Levels as small as a large family's keep their difference.
    contrast = paired(A, B)
    found = [detectable_difference(contrast, alpha=0.05 / k, power=0.8) for k in (1, 45, 10**12)]
    assert found == sorted(found)
    assert math.isfinite(found[-1])


def test_small_sample_correction():
    # J(2) = Gamma(1) / Gamma(1/2); J(4) = Gamma(2) / (sqrt 2 Gamma(3/2)) = sqrt(2 / pi).
    assert small_sample_correction(2) == pytest.approx(1 / math.sqrt(math.pi))
    assert small_sample_correction(4) == pytest.approx(math.sqrt(2 / math.pi))
    # Hedges' approximation 1 - 3 / (4 df - 1).
    assert small_sample_correction(50) == pytest.approx(1 - 3 / 199, abs=1e-4)


def test_hedges_g_by_hand():
    # Variances 0.037 and 0.007, standardiser sqrt(0.022), d = -0.2 / 0.148324 = -1.348400.
    # r = 0.0010 / sqrt(0.037 * 0.007) with covariance -0.003: r^2 = 9e-6 / 2.59e-4 = 0.034749.
    g = hedges_g(A, B, paired(A, B), is_paired=True, level=0.95)
    covariance = np.cov(A, B)
    r_squared = covariance[0, 1] ** 2 / (covariance[0, 0] * covariance[1, 1])
    j = small_sample_correction(8 / (1 + r_squared))
    assert g.standardiser == pytest.approx(math.sqrt(0.022))
    assert g.estimate == pytest.approx(j * -1.348400, rel=1e-6)
    assert g.low < g.estimate < g.high
    # Noncentralities at which t = -2 on 4 degrees of freedom leaves 2.5 % on one side.
    for limit, share in ((g.low, 0.025), (g.high, 0.975)):
        noncentrality = limit * math.sqrt(0.022) / 0.1
        assert stats.nct.sf(-2.0, 4, noncentrality) == pytest.approx(share, abs=1e-6)
    # The interval leaves out zero exactly when the test rejects.
    level = 1 - float(paired(A, B).p)
    assert hedges_g(A, B, paired(A, B), is_paired=True, level=level).high == pytest.approx(0)


def test_unpaired_hedges_g_is_the_usual_one_for_equal_samples():
    a, b = samples(6, 6, 0)
    b = (b - b.mean()) * a.std() / b.std() + 2.1
    g = hedges_g(a, b, welch(a, b), is_paired=False, level=0.95)
    pooled = math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)
    assert g.estimate == pytest.approx(small_sample_correction(10) * (a.mean() - 2.1) / pooled)


def test_probability_of_improvement_by_hand():
    found = improvement(A, B, is_paired=True, level=0.95)
    assert (found.estimate, found.ties) == (0.8, 0)
    expected = stats.binomtest(4, 5).proportion_ci(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    found = improvement([1.0, 2.0, 3.0], [2.0, 2.0, 4.0], is_paired=False, level=0.95)
    # 1 beats three; 2 ties two and beats one; 3 beats one: (3 + 1 + 1 + 1) / 9.
    assert (found.estimate, found.ties) == (pytest.approx(6 / 9), 2)
    u = stats.mannwhitneyu(B, A).statistic
    assert improvement(A, B, is_paired=False, level=0.95).estimate == pytest.approx(u / 25)


@pytest.mark.parametrize("hits", range(6))
def test_clopper_pearson_against_scipy(hits: int):
    expected = stats.binomtest(hits, 5).proportion_ci(0.95)
    assert clopper_pearson(hits / 5, 5, 0.95) == pytest.approx((expected.low, expected.high))


def test_pareto_by_hand():
    points = [(3.0, 1.0), (1.0, 3.0), (2.0, 2.0), (2.0, 3.0), (4.0, 1.0), (2.0, 2.0)]
    assert pareto(points) == [1, 2, 5, 0]
    assert pareto([(math.nan, 0.0), (1.0, math.inf), (1.0, 1.0)]) == [2]
    assert pareto([]) == []


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=20))
def test_pareto_against_the_definition(points: list[tuple[int, int]]):
    def dominated(p: tuple[int, int]) -> bool:
        return any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in points)

    points_as_floats = [(float(x), float(y)) for x, y in points]
    front = pareto(points_as_floats)
    assert sorted(front) == [i for i, p in enumerate(points) if not dominated(p)]
    assert [points[i][0] for i in front] == sorted(points[i][0] for i in front)


def validation(*lines: tuple[int, float, float]) -> Curve:
    entries = tuple(
        {"kind": "validation", "step": s, "tokens": 100 * s, "loss": x, "seconds": t}
        for s, x, t in lines
    )
    return Curve(train=(), validation=entries)


def test_time_to_threshold():
    curve = validation((10, 4.0, 1.0), (20, 3.0, 3.0), (30, 3.2, 5.0), (40, 2.0, 9.0))
    assert time_to_threshold(curve, 3.25) == pytest.approx(2.5)
    assert time_to_threshold(curve, 3.25, by="tokens") == pytest.approx(1750)
    assert time_to_threshold(curve, 3.25, by="flops", flops_per_step=2e9) == pytest.approx(35e9)
    assert time_to_threshold(curve, 3.0, by="step") == 20
    # 2.6 lies half way from 3.2 down to 2.0.
    assert time_to_threshold(curve, 2.6) == pytest.approx(7.0)
    assert time_to_threshold(curve, 1.9) is None
    assert time_to_threshold(curve, 9.0) == 1.0
    assert time_to_threshold(validation(), 9.0) is None
    assert time_to_threshold(validation((1, math.nan, 1.0), (2, 1.0, 2.0)), 2.0) == 2.0
    with pytest.raises(ValueError, match="did you mean tokens"):
        time_to_threshold(curve, 1.0, by="token")
    with pytest.raises(ValueError, match="flops_per_step"):
        time_to_threshold(curve, 1.0, by="flops")
