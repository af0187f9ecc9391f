"""The difference of two means and the t-tests on it.

A contrast is an estimate with its standard error and degrees of freedom. What is tested
about it (that it is zero, that it is beyond a margin) does not depend on how it came about, so
paired and unpaired designs share everything after this. Fields may be arrays: many contrasts.
SciPy's t-tests do not give the standard error that tests against a margin need, and SciPy has no
Holm: its `false_discovery_control` bounds the share of false rejections, not the chance of any.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats


@dataclass(frozen=True)
class Contrast:
    """mean a - mean b."""

    estimate: Any
    standard_error: Any
    df: Any

    @property
    def t(self) -> Any:
        return self.estimate / self.standard_error

    @property
    def p(self) -> Any:
        """Two-sided p against no difference."""
        return 2 * special.stdtr(self.df, -np.abs(self.t))

    def tost(self, margin: float) -> tuple[Any, Any]:
        """One-sided p against 'at most -margin' and against 'at least margin' (Schuirmann 1987)."""
        above = (self.estimate + margin) / self.standard_error
        below = (self.estimate - margin) / self.standard_error
        return special.stdtr(self.df, -above), special.stdtr(self.df, below)

    def limits(self, level: float) -> tuple[Any, Any]:
        """The ends of the confidence interval."""
        return stats.t.interval(level, self.df, loc=self.estimate, scale=self.standard_error)


def paired(a: ArrayLike, b: ArrayLike) -> Contrast:
    """Student's t on the differences; seeds along the last axis."""
    differences = np.asarray(a, dtype=float) - np.asarray(b, dtype=float)
    n = differences.shape[-1]
    error = differences.std(axis=-1, ddof=1) / np.sqrt(n)
    return Contrast(differences.mean(axis=-1), error, n - 1)


def welch(a: ArrayLike, b: ArrayLike) -> Contrast:
    """Welch's t with Satterthwaite's degrees of freedom; seeds along the last axis."""
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    n_a, n_b = a.shape[-1], b.shape[-1]
    part_a = a.var(axis=-1, ddof=1) / n_a
    part_b = b.var(axis=-1, ddof=1) / n_b
    df = (part_a + part_b) ** 2 / (part_a**2 / (n_a - 1) + part_b**2 / (n_b - 1))
    return Contrast(a.mean(axis=-1) - b.mean(axis=-1), np.sqrt(part_a + part_b), df)


def holm(p: ArrayLike) -> NDArray[Any]:
    """Holm's (1979) adjusted p-values of a family along the last axis.

    Comparing them with alpha keeps the chance of any false rejection in the family at alpha,
    however the tests depend on each other.
    """
    p = np.asarray(p, dtype=float)
    order = np.argsort(p, axis=-1)
    remaining = np.arange(p.shape[-1], 0, -1)
    stepwise = np.take_along_axis(p, order, axis=-1) * remaining
    adjusted = np.minimum(np.maximum.accumulate(stepwise, axis=-1), 1.0)
    result = np.empty_like(p)
    np.put_along_axis(result, order, adjusted, axis=-1)
    return result
