"""Confidence intervals of a mean, and the JSON object an interval becomes.

The limits work on the last axis and carry any leading axes along.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

# Two values leave one degree of freedom: a 95 % interval of 12.7 standard errors, from a
# standard error that is itself known to no useful precision. Three is the least we infer from.
MINIMUM_SEEDS = 3

Limits = Callable[[NDArray[Any], float], tuple[Any, Any]]


def interval(low: float, high: float, level: float) -> dict[str, Any]:
    """An interval as it stands in the files."""
    return {"low": float(low), "high": float(high), "level": level, "reason": None}


def no_interval(level: float, reason: str | None) -> dict[str, Any]:
    """The place of an interval that cannot be given."""
    return {"low": None, "high": None, "level": level, "reason": reason}


def constant(values: ArrayLike) -> bool:
    """Whether the values do not vary beyond rounding."""
    values = np.asarray(values, dtype=float)
    return bool(np.std(values) <= 1e-12 * np.max(np.abs(values), initial=0.0))


def mean_interval(values: NDArray[Any], level: float, limits: Limits) -> dict[str, Any]:
    """The interval of a mean as it stands in the files, by `t_limits` or `bca_limits`."""
    n = values.size
    if n < MINIMUM_SEEDS:
        reason = f"{n} seed{'' if n == 1 else 's'}; at least {MINIMUM_SEEDS} are needed"
        return no_interval(level, reason)
    if constant(values):
        return no_interval(level, "all values are the same: their spread cannot be estimated")
    return interval(*limits(values, level), level)


def t_limits(values: ArrayLike, level: float) -> tuple[Any, Any]:
    """mean -+ t(n - 1) sd / sqrt(n)."""
    values = np.asarray(values, dtype=float)
    scale = stats.sem(values, axis=-1)
    return stats.t.interval(level, values.shape[-1] - 1, loc=values.mean(axis=-1), scale=scale)


def bca_limits(
    values: ArrayLike, level: float, *, resamples: int, generator: np.random.Generator
) -> tuple[Any, Any]:
    """Bias-corrected and accelerated bootstrap of the mean (Efron 1987), by SciPy.

    The bias correction counts the resampled means below the mean, ties half. A resample that is a
    permutation of the values ties exactly, but its floating-point mean may miss by a rounding and
    count as below or above: of three values every fourth or fifth resample is one. So means are
    taken of values that are centred and scaled, and rounded to 12 decimals.
    """
    values = np.asarray(values, dtype=float)
    mean = values.mean(axis=-1)
    centred = values - mean[..., None]
    scale = np.abs(centred).max(axis=-1)

    def rounded_mean(sample: NDArray[Any], axis: int) -> Any:
        return np.round(sample.mean(axis=axis), 12)

    ends = stats.bootstrap(
        (centred / scale[..., None],),
        rounded_mean,
        n_resamples=resamples,
        axis=-1,
        confidence_level=level,
        method="BCa",
        rng=generator,
    ).confidence_interval
    return mean + scale * ends.low, mean + scale * ends.high
