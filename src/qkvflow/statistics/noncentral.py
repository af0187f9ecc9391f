"""The noncentral t distribution, for effect-size intervals and power.

T = (Z + delta) / W with Z standard normal and df W^2 chi-squared. For t > 0, conditioning on W,

    P(T <= t) = Phi(-delta) + integral over x > 0 of  t phi(t x - delta) P(W > x) dx.

The integrand is a product of two smooth functions, each of which vanishes outside a known range,
so Gauss-Legendre on the intersection of the ranges is accurate for every t and delta. SciPy's
`nct` is the independent check in the tests; it is not used because it returns NaN in the
tails, where a search for a root has to start.
"""

from collections.abc import Callable

import numpy as np
from scipy import optimize, special

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(160)
_NORMAL_RANGE = 9.0  # Phi(-9) is 1e-19
_TAIL = 1e-18


def cdf(t: float, df: float, delta: float) -> float:
    """P(T <= t) for noncentrality `delta`."""
    if t < 0:
        return 1.0 - cdf(-t, df, -delta)
    below = float(special.ndtr(-delta))
    if t == 0:
        return below
    largest = np.sqrt(special.chdtri(df, _TAIL) / df)
    low = max(0.0, (delta - _NORMAL_RANGE) / t)
    high = min(largest, (delta + _NORMAL_RANGE) / t)
    if high <= low:
        # Either the density is all beyond W's range (nothing to add) or delta is far below 0.
        return below
    x = low + (high - low) * (_NODES + 1) / 2
    density = np.exp(-((t * x - delta) ** 2) / 2) / np.sqrt(2 * np.pi)
    integral = np.sum(_WEIGHTS * density * special.chdtrc(df, df * x**2)) * (high - low) / 2
    return float(min(1.0, below + t * integral))


def noncentrality_limits(t: float, df: float, level: float) -> tuple[float, float]:
    """The confidence interval of the noncentrality after observing the statistic `t`."""
    tail = (1 - level) / 2
    return _noncentrality(t, df, 1 - tail), _noncentrality(t, df, tail)


def power(delta: float, df: float, alpha: float) -> float:
    """Probability that a two-sided t-test at level `alpha` rejects."""
    critical = float(special.stdtrit(df, 1 - alpha / 2))
    return 1.0 - cdf(critical, df, delta) + cdf(-critical, df, delta)


def detectable_noncentrality(df: float, alpha: float, wanted: float) -> float:
    """The noncentrality at which the two-sided test at level `alpha` has power `wanted`."""
    high = 1.0
    while power(high, df, alpha) < wanted:
        high *= 2
    return _root(lambda delta: power(delta, df, alpha) - wanted, 0.0, high)


def _noncentrality(t: float, df: float, probability: float) -> float:
    """The delta with P(T <= t) = probability; the probability falls as delta grows."""
    ends = t * np.sqrt(special.chdtri(df, np.array([1 - 1e-12, 1e-12])) / df)
    low, high = min(ends) - _NORMAL_RANGE, max(ends) + _NORMAL_RANGE
    return _root(lambda delta: cdf(t, df, delta) - probability, low, high)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    return float(optimize.root_scalar(function, bracket=(low, high), method="brentq").root)
