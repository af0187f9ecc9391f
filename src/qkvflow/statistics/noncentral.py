"""Solving the noncentral t distribution for its noncentrality: effect-size intervals and power.

T = (Z + delta) / W with Z standard normal and df W^2 chi-squared. The distribution is SciPy's
`nct`, kept away from where that returns NaN: lower tails at t < 0 are taken as upper tails at -t,
and beyond t = 1e4, where Z is lost beside delta, W alone decides. SciPy's own inverse,
`special.nctdtrinc`, is not used: in a tail of 1e-4 it is several per cent off the solution.
"""

from collections.abc import Callable

import numpy as np
from scipy import optimize, special, stats

_LARGE = 1e4


def noncentrality(t: float, df: float, probability: float) -> float:
    """The delta with P(T <= t) = probability."""
    if t < 0:
        return -noncentrality(-t, df, 1 - probability)
    if t > _LARGE:
        # T <= t is W >= delta / t, up to a relative error of 1e-6.
        return t * _spread(df, probability)
    # T > t means Z > t W - delta. At `low` that needs W below or Z above a quantile of its own,
    # each with half of the wanted probability, so it is no likelier than wanted; so at `high`.
    low = t * _spread(df, (1 + probability) / 2) + special.ndtri((1 - probability) / 2)
    high = t * _spread(df, probability / 2) - special.ndtri(probability / 2)
    return _root(lambda delta: float(stats.nct.cdf(t, df, delta)) - probability, low, high)


def noncentrality_limits(t: float, df: float, level: float) -> tuple[float, float]:
    """The confidence interval of the noncentrality after observing the statistic `t`."""
    tail = (1 - level) / 2
    return noncentrality(t, df, 1 - tail), noncentrality(t, df, tail)


def power(delta: float, df: float, alpha: float) -> float:
    """Probability that a two-sided t-test at level `alpha` rejects."""
    critical = special.stdtrit(df, 1 - alpha / 2)
    return float(stats.nct.sf(critical, df, delta) + stats.nct.sf(critical, df, -delta))


def detectable_noncentrality(df: float, alpha: float, wanted: float) -> float:
    """The noncentrality at which the two-sided test at level `alpha` has power `wanted`."""
    critical = float(special.stdtrit(df, 1 - alpha / 2))
    # One tail alone needs a little more; beyond `_LARGE` the other one holds nothing.
    one_sided = noncentrality(critical, df, 1 - wanted)
    if critical > _LARGE:
        return one_sided
    return _root(lambda delta: power(delta, df, alpha) - wanted, 0.0, one_sided + 1e-6)


def _spread(df: float, upper_tail: float) -> float:
    """The w with P(W > w) = upper_tail."""
    return float(np.sqrt(special.chdtri(df, upper_tail) / df))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    return float(optimize.root_scalar(function, bracket=(low, high), method="brentq").root)
