"""Does a quantity grow with depth? Spearman's rank correlation with t, and its p-value.

Depths are few, so up to eight of them the p-value is exact: the share of all orders of the values
with a correlation at least as far from 0. Beyond that it is that of Student's t.

Only a model's own grid points may be counted. Between them a field is smooth, and any number
of depths could be taken: the p-value of a smooth curve would be as small as one likes.
"""

import math
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from jaxtyping import Float
from scipy import stats

EXACT = 8
ALPHA = 0.05


@dataclass(frozen=True)
class Trend:
    """Whether something grows or shrinks with depth, and how sure that is."""

    rho: float
    """Spearman's rank correlation with t; NaN where nothing varies or there are too few depths."""
    p: float
    """Two-sided."""
    depths: int
    """How many depths were counted."""

    def verdict(self, tests: int = 1) -> str:
        """`tests` is how many trends are judged together (Bonferroni)."""
        if not np.isfinite(self.p):
            return "cannot be tested for a trend with depth"
        if 2.0 / math.factorial(min(self.depths, 20)) * tests > ALPHA:
            return f"have too few depths ({self.depths}) for any trend to show"
        if self.p * tests > ALPHA:
            return "show no clear trend with depth"
        return "grow with depth" if self.rho > 0 else "shrink with depth"

    def numbers(self) -> str:
        """Correlation and p-value, in words."""
        if not np.isfinite(self.p):
            return "they do not vary, or there are fewer than three depths"
        p = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"
        return f"Spearman's rho {self.rho:+.2f}, {p}".replace("-", "−")


def trend(ts: Float[np.ndarray, " depth"], values: Float[np.ndarray, " depth"]) -> Trend:
    """Spearman's rank correlation with depth, with an exact p-value where depths are few."""
    # Rounding alone must not make ranks of a quantity that is constant.
    spread = np.ptp(values) if len(values) else 0.0
    if len(ts) < 3 or not spread > 1e-6 * np.max(np.abs(values)):
        return Trend(np.nan, np.nan, len(ts))
    x, y = stats.rankdata(ts), stats.rankdata(values)
    rho = float(np.corrcoef(x, y)[0, 1])
    if len(ts) > EXACT:
        t = rho * np.sqrt((len(ts) - 2) / max(1.0 - rho**2, 1e-300))
        return Trend(rho, float(2.0 * stats.t.sf(abs(t), len(ts) - 2)), len(ts))
    orders = np.array(list(permutations(y)))
    others = (orders - y.mean()) @ (x - x.mean())
    return Trend(rho, float(np.mean(np.abs(others) >= np.abs(others[0]) - 1e-9)), len(ts))
