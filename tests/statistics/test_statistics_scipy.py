"""Where SciPy's statistics fail, and that ours do not: against enumeration and quadrature."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
from scipy import integrate, special

from qkvflow.statistics.effects import clopper_pearson
from qkvflow.statistics.intervals import bca_limits
from qkvflow.statistics.noncentral import noncentrality, noncentrality_limits
from qkvflow.statistics.ranks import mann_whitney, wilcoxon

# SciPy's results have fields that its annotations do not know.
stats: Any = scipy.stats


def losses(n: int, trial: int) -> np.ndarray:
    return np.random.default_rng([n, n, trial]).normal(2.0, 0.1, n)


def test_scipys_rank_tests_are_not_exact_with_ties():
    # Ranks 2, 2, 2 negative and 4 positive: both tails of the positive sum, 4, hold 9 of 16 or
    # more, so p is 1. Untied ranks 1 to 4 give 7/16 to "at most 4".
    differences = [-2.0, -2.0, -2.0, 3.0]
    assert wilcoxon(differences).p == 1
    assert stats.wilcoxon(differences, method="exact").pvalue == pytest.approx(14 / 16)
    # Three of fifteen equal differences are negative: 576 of 2^15 sign patterns are as few.
    differences = [1.0] * 12 + [-1.0] * 3
    assert wilcoxon(differences).p == pytest.approx(2 * 576 / 2**15)
    assert stats.wilcoxon(differences).pvalue < 0.6 * wilcoxon(differences).p
    # One 2 among five 1s is in either sample with probability 1/2: p is 1.
    a, b = [1.0, 1.0, 1.0], [1.0, 1.0, 2.0]
    assert mann_whitney(a, b).p == 1
    assert stats.mannwhitneyu(a, b, method="exact").pvalue == pytest.approx(0.7)
    assert stats.mannwhitneyu(a, b).pvalue == pytest.approx(0.505, abs=1e-3)


def noncentral_cdf(t: float, df: float, delta: float) -> float:
    """P(Z + delta <= t W) by integrating over W, whose square times df is chi-squared."""

    def density(w: float) -> float:
        return stats.chi.pdf(w * df**0.5, df) * df**0.5 * special.ndtr(t * w - delta)

    # Phi rises from 0 to 1 around delta / t; break points there let the quadrature see it.
    step = [x for x in ((delta + k) / t for k in (-9, -3, 0, 3, 9)) if 0 < x < 9] if t else []
    return integrate.quad(density, 0, 9, points=step or None, limit=400, epsabs=1e-12)[0]


@pytest.mark.parametrize("df", [2.0, 4.0, 7.3, 40.0])
@pytest.mark.parametrize("t", [-60.0, -6.0, -0.3, 0.0, 0.01, 1.0, 5.0, 24.0, 300.0])
def test_noncentrality_against_quadrature(t: float, df: float):
    for probability in (1e-4, 0.025, 0.2, 0.5, 0.975, 0.9999):
        delta = noncentrality(t, df, probability)
        assert noncentral_cdf(t, df, delta) == pytest.approx(probability, abs=1e-9)


def test_noncentrality_limits_leave_the_stated_tails():
    for t in (-30.0, -2.0, 0.0, 0.5, 3.0, 60.0):
        low, high = noncentrality_limits(t, 4.0, 0.95)
        tails = 1 - noncentral_cdf(t, 4.0, low), noncentral_cdf(t, 4.0, high)
        assert tails == pytest.approx((0.025, 0.025))
    # So large a statistic is all but t = delta / W: the limits are quantiles of W.
    low, high = noncentrality_limits(1e9, 4.0, 0.95)
    expected = 1e9 * np.sqrt(stats.chi2.ppf([0.025, 0.975], 4) / 4)
    assert (low, high) == pytest.approx(tuple(expected), rel=1e-6)
    # Where the two ways meet they agree.
    below, above = (noncentrality(t, 2.0, 0.975) / t for t in (9_999.0, 10_001.0))
    assert below == pytest.approx(above, rel=1e-6)


def test_scipys_noncentral_t_fails_where_it_is_not_asked():
    """If this fails, SciPy has mended it and `noncentral` can lose the case."""
    with np.errstate(all="ignore"):
        # Lower tails at t < 0; as upper tails they are given.
        critical, deltas = stats.t.ppf(0.975, 4), np.array([10.0, 12.0, 15.0])
        assert np.isnan(stats.nct.cdf(-critical, 4.0, deltas)).any()
        np.testing.assert_allclose(stats.nct.sf(critical, 4.0, -deltas), 0, atol=1e-12)
        # Large statistics, as of a difference that is all but the same on every seed.
        assert math.isnan(stats.nct.cdf(1e6, 4.0, 1e6))
    # Its inverse is off where the quadrature confirms ours.
    t, df, tail = 800.0, 2.0, 1e-4
    delta = noncentrality(t, df, tail)
    assert noncentral_cdf(t, df, delta) == pytest.approx(tail, rel=1e-4)
    assert special.nctdtrinc(df, tail, t) > 1.04 * delta


def test_a_share_between_two_counts_has_an_interval_between_theirs():
    with pytest.raises(TypeError, match="integer"):
        stats.binomtest(2.5, 5)
    ends = [clopper_pearson(hits / 5, 5, 0.95) for hits in (2, 2.5, 3)]
    assert [low for low, _ in ends] == sorted(low for low, _ in ends)
    assert [high for _, high in ends] == sorted(high for _, high in ends)


def bca_by_enumeration(values: np.ndarray, level: float, slack: float) -> np.ndarray:
    """BCa with every one of the n^n resamples, once each, as Efron (1987) has it.

    The ends are quantiles; the two rows are those at shares that are less and more by `slack`.
    """
    n = len(values)
    means = np.sort([sum(c) for c in itertools.product(values - values.mean(), repeat=n)]) / n
    ties = np.abs(means) < 1e-12
    z0 = stats.norm.ppf((means[~ties] < 0).sum() / n**n + ties.mean() / 2)
    centred = values - values.mean()
    acceleration = (centred**3).sum() / (6 * (centred**2).sum() ** 1.5)
    z = z0 + stats.norm.ppf([(1 - level) / 2, (1 + level) / 2])
    shares = stats.norm.cdf(z0 + z / (1 - acceleration * z))
    around = np.clip([shares - slack, shares + slack], 0, 1)
    return values.mean() + np.quantile(means, around, method="inverted_cdf")


@pytest.mark.parametrize("trial", range(4))
@pytest.mark.parametrize("n", [3, 4, 5])
def test_bca_against_every_resample(n: int, trial: int):
    values = losses(n, trial)
    ours = bca_limits(values, 0.95, resamples=50_000, generator=np.random.default_rng(2))
    below, above = bca_by_enumeration(values, 0.95, slack=0.003)
    assert (below - 1e-9 <= ours).all()
    assert (ours <= above + 1e-9).all()


def test_scipys_bca_of_the_plain_mean_depends_on_rounding():
    """Adding a constant moves both ends by it, unless permutations of the data miss its mean."""

    def plain(values: np.ndarray) -> tuple[float, float]:
        return stats.bootstrap(
            (values,), np.mean, method="BCa", rng=np.random.default_rng(0)
        ).confidence_interval

    def ours(values: np.ndarray) -> tuple[float, float]:
        return bca_limits(values, 0.95, resamples=9999, generator=np.random.default_rng(0))

    worst = 0.0
    for trial in range(20):
        values = losses(3, trial)
        moved = np.array([ours(values), np.subtract(ours(values + 1.0), 1.0)])
        np.testing.assert_allclose(moved[0], moved[1], atol=1e-10)
        moved = np.array([plain(values), np.subtract(plain(values + 1.0), 1.0)])
        worst = max(worst, np.abs(moved[0] - moved[1]).max() / values.std())
    assert worst > 0.2


def test_bca_of_three_values():
    # 0, 0, 3: means 0, 1, 2, 3 in 8, 12, 6, 1 of 27 resamples. The mean is 1: z0 = Phi^-1(14/27).
    # Centred values -1, -1, 2: acceleration 6 / (6 * 6^1.5) = 0.068041. The ends are the quantiles
    # at 0.0498 and 0.9911 of the resampled means: 0 (up to 8/27), and 3 (from 26/27 = 0.963).
    def limits(level: float) -> tuple[float, float]:
        generator = np.random.default_rng(0)
        return bca_limits([0.0, 0.0, 3.0], level, resamples=20_000, generator=generator)

    assert limits(0.95) == pytest.approx((0.0, 3.0))
    # At 89 % the plain upper quantile, at 0.945, would be 2; the corrected one, at 0.971, is 3.
    assert limits(0.89) == pytest.approx((0.0, 3.0))


def test_bca_carries_leading_axes():
    values = np.random.default_rng(0).normal(size=(3, 2, 6))
    low, high = bca_limits(values, 0.9, resamples=500, generator=np.random.default_rng(1))
    for index in np.ndindex(3, 2):
        one = bca_limits(values[index], 0.9, resamples=500, generator=np.random.default_rng(1))
        assert (low[index], high[index]) == pytest.approx(one)
