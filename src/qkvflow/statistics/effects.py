"""Sizes of effects: Hedges' g, probability of improvement, the detectable difference."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from qkvflow.statistics.contrast import Contrast
from qkvflow.statistics.noncentral import (
    detectable_noncentrality,
    noncentrality_limits,
)


@dataclass(frozen=True)
class HedgesG:
    """(mean a - mean b) / s, corrected for small samples; s^2 = (var a + var b) / 2."""

    estimate: float
    low: float
    high: float
    standardiser: float
    correction: float


@dataclass(frozen=True)
class Improvement:
    """The probability that a run of a has a lower loss than one of b."""

    estimate: float
    low: float
    high: float
    ties: int


def small_sample_correction(df: Any) -> Any:
    """Hedges' exact J(df), the factor that makes a standardised difference unbiased."""
    half = np.asarray(df, dtype=float) / 2
    return np.exp(special.gammaln(half) - special.gammaln(half - 0.5)) / np.sqrt(half)


def standardiser_df(a: ArrayLike, b: ArrayLike, *, is_paired: bool) -> Any:
    """Degrees of freedom of s^2 = (var a + var b) / 2; seeds along the last axis.

    Paired variances are correlated (by the square of the correlation of the values), so they hold
    less information than two separate ones: 2 (n - 1) / (1 + r^2).
    """
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    var_a, var_b = a.var(axis=-1, ddof=1), b.var(axis=-1, ddof=1)
    n_a, n_b = a.shape[-1], b.shape[-1]
    if is_paired:
        centred_a = a - a.mean(axis=-1, keepdims=True)
        centred_b = b - b.mean(axis=-1, keepdims=True)
        covariance = (centred_a * centred_b).sum(axis=-1) / (n_a - 1)
        product = var_a * var_b
        r_squared = np.where(product > 0, covariance**2 / np.where(product > 0, product, 1), 0)
        return 2 * (n_a - 1) / (1 + r_squared)
    return (var_a + var_b) ** 2 / (var_a**2 / (n_a - 1) + var_b**2 / (n_b - 1))


def hedges_g(
    a: ArrayLike, b: ArrayLike, contrast: Contrast, *, is_paired: bool, level: float
) -> HedgesG:
    """Hedges' g of one pair with its interval (Algina and Keselman 2003).

    The limits are of the true standardised difference and take no small-sample correction: it
    removes the bias of the estimate, and applied to the limits it would cost coverage.
    """
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    standardiser = float(np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2))
    correction = float(small_sample_correction(standardiser_df(a, b, is_paired=is_paired)))
    low, high = noncentrality_limits(float(contrast.t), float(contrast.df), level)
    scale = float(contrast.standard_error) / standardiser
    return HedgesG(
        estimate=correction * float(contrast.estimate) / standardiser,
        low=low * scale,
        high=high * scale,
        standardiser=standardiser,
        correction=correction,
    )


def improvement(a: ArrayLike, b: ArrayLike, *, is_paired: bool, level: float) -> Improvement:
    """Probability of improvement: over seeds if paired, over all couples of runs if not."""
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    difference = a - b if is_paired else a[:, None] - b[None, :]
    ties = int((difference == 0).sum())
    estimate = float((difference < 0).mean() + ties / difference.size / 2)
    low, high = clopper_pearson(estimate, min(a.size, b.size), level)
    return Improvement(estimate, low, high, ties)


def clopper_pearson(share: float, trials: int, level: float) -> tuple[float, float]:
    """The exact binomial interval; a share between two counts gets one between theirs.

    Ties and unpaired designs make such shares, which SciPy's `binomtest` refuses.
    """
    tail = (1 - level) / 2
    hits = share * trials
    low = 0.0 if hits <= 0 else float(special.betaincinv(hits, trials - hits + 1, tail))
    high = 1.0 if hits >= trials else float(special.betaincinv(hits + 1, trials - hits, 1 - tail))
    return low, high


def detectable_difference(contrast: Contrast, *, alpha: float, power: float) -> float:
    """The true difference that the t-test at `alpha` would find with probability `power`."""
    noncentrality = detectable_noncentrality(float(contrast.df), alpha, power)
    return noncentrality * float(contrast.standard_error)
