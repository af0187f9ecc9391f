"""Confidence intervals of a mean, and the JSON object an interval becomes.

Functions that return arrays work on the last axis and carry any leading axes along.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

# Two values leave one degree of freedom: a 95 % interval of 12.7 standard errors, from a
# standard error that is itself known to no useful precision. Three is the least we infer from.
MINIMUM_SEEDS = 3


def interval(low: float, high: float, level: float) -> dict[str, Any]:
    """An interval as it stands in the files."""
    return {"low": float(low), "high": float(high), "level": level, "reason": None}


def no_interval(level: float, reason: str) -> dict[str, Any]:
    """The place of an interval that cannot be given."""
    return {"low": None, "high": None, "level": level, "reason": reason}


def too_few(n: int) -> str:
    """Why nothing is inferred from n seeds."""
    return f"{n} seed{'' if n == 1 else 's'}; at least {MINIMUM_SEEDS} are needed"


def constant(values: ArrayLike) -> bool:
    """Whether the values do not vary beyond rounding."""
    values = np.asarray(values, dtype=float)
    return bool(np.std(values) <= 1e-12 * np.max(np.abs(values), initial=0.0))


def t_quantile(df: Any, level: float) -> Any:
    """Half-width of a two-sided interval in standard errors."""
    return special.stdtrit(df, (1 + level) / 2)


def t_limits(values: ArrayLike, level: float) -> tuple[Any, Any]:
    """mean -+ t(n - 1) sd / sqrt(n)."""
    values = np.asarray(values, dtype=float)
    n = values.shape[-1]
    half = t_quantile(n - 1, level) * values.std(axis=-1, ddof=1) / np.sqrt(n)
    return values.mean(axis=-1) - half, values.mean(axis=-1) + half


def bca_limits(
    values: ArrayLike, level: float, *, resamples: int, generator: np.random.Generator
) -> tuple[Any, Any]:
    """Bias-corrected and accelerated bootstrap of the mean (Efron 1987).

    With z0 = Phi^-1(share of resampled means below the mean, ties half) and the acceleration
    a = sum d^3 / (6 (sum d^2)^1.5), d = mean of the jackknife means minus each of them, the ends
    are the quantiles Phi(z0 + (z0 + z) / (1 - a (z0 + z))) of the resampled means,
    z = Phi^-1(tail).
    """
    values = np.asarray(values, dtype=float)
    n = values.shape[-1]
    drawn = generator.integers(n, size=(resamples, n))
    # A count matrix makes resampling one matrix product, whatever the leading axes.
    counts = np.zeros((resamples, n))
    np.add.at(counts, (np.arange(resamples)[:, None], drawn), 1.0)
    centred = values - values.mean(axis=-1, keepdims=True)
    means = np.sort(centred @ counts.T / n, axis=-1)
    # The centred mean is zero; resamples that are permutations of the data miss it by rounding.
    rounding = 1e-12 * np.abs(centred).max(axis=-1, keepdims=True)
    below = (means < -rounding).mean(axis=-1)
    ties = (np.abs(means) <= rounding).mean(axis=-1)
    z0 = special.ndtri(below + ties / 2)
    # The jackknife mean without value i is the mean minus centred_i / (n - 1), so d is
    # centred_i / (n - 1); the factor cancels in a.
    acceleration = (centred**3).sum(axis=-1) / (6 * (centred**2).sum(axis=-1) ** 1.5)
    ends = []
    for tail in ((1 - level) / 2, (1 + level) / 2):
        shifted = z0 + special.ndtri(tail)
        share = special.ndtr(z0 + shifted / (1 - acceleration * shifted))
        ends.append(_quantile_of_sorted(means, share) + values.mean(axis=-1))
    return ends[0], ends[1]


def t_interval(values: ArrayLike, level: float) -> dict[str, Any]:
    """The t interval as it stands in the files."""
    n = np.size(values)
    if n < MINIMUM_SEEDS:
        return no_interval(level, too_few(n))
    if constant(values):
        return no_interval(level, "all values are the same: their spread cannot be estimated")
    low, high = t_limits(values, level)
    return interval(float(low), float(high), level)


def bca_interval(
    values: ArrayLike, level: float, *, resamples: int, generator: np.random.Generator
) -> dict[str, Any]:
    """The BCa interval as it stands in the files."""
    n = np.size(values)
    if n < MINIMUM_SEEDS:
        return no_interval(level, too_few(n))
    if constant(values):
        return no_interval(level, "all values are the same: their spread cannot be estimated")
    low, high = bca_limits(values, level, resamples=resamples, generator=generator)
    return interval(float(low), float(high), level)


def _quantile_of_sorted(ordered: NDArray[Any], share: ArrayLike) -> Any:
    """Linear interpolation between order statistics, a share per leading index."""
    position = np.clip(np.asarray(share), 0, 1) * (ordered.shape[-1] - 1)
    position = position[..., None]
    left = np.floor(position).astype(int)
    right = np.minimum(left + 1, ordered.shape[-1] - 1)
    weight = (position - left)[..., 0]
    low = np.take_along_axis(ordered, left, axis=-1)[..., 0]
    high = np.take_along_axis(ordered, right, axis=-1)[..., 0]
    return low + weight * (high - low)
