"""Exact rank tests, ties included.

The null distribution of a sum of ranks is built by adding one observation at a time. Midranks are
multiples of one half, so twice a rank is a whole number and sums index an array. No tables, no
normal approximation, and ties need no correction: the distribution is that of the ranks seen.

SciPy's tests are not exact where there are ties: `method="exact"` then takes the distribution of
untied ranks, the automatic choice a normal approximation (Mann-Whitney always, Wilcoxon from 14
differences on), and a permutation test goes through every arrangement.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats


@dataclass(frozen=True)
class RankTest:
    """`smallest_p` is the least two-sided p that any arrangement of these ranks could give."""

    statistic: float
    p: float
    smallest_p: float


def wilcoxon(differences: ArrayLike) -> RankTest:
    """Wilcoxon's signed-rank test: under the null each rank is positive with probability 1/2.

    Zero differences are left out; if nothing is left, p is 1.
    """
    differences = np.asarray(differences, dtype=float)
    differences = differences[differences != 0]
    ranks = stats.rankdata(np.abs(differences))
    doubled = np.rint(2 * ranks).astype(int)
    null = np.ones(1)
    for rank in doubled:
        null = (np.append(null, np.zeros(rank)) + np.append(np.zeros(rank), null)) / 2
    positive = int(doubled[differences > 0].sum())
    return RankTest(positive / 2, _two_sided(null, positive), _two_sided(null, 0))


def mann_whitney(a: Sequence[float], b: Sequence[float]) -> RankTest:
    """Mann and Whitney's test: under the null every choice of n_a of all ranks is as likely."""
    n_a = len(a)
    doubled = np.rint(2 * stats.rankdata([*a, *b])).astype(int)
    # chosen[k, s]: number of ways to choose k of the ranks seen so far with doubled sum s.
    chosen = np.zeros((n_a + 1, int(doubled.sum()) + 1))
    chosen[0, 0] = 1
    for rank in doubled:
        chosen[1:, rank:] += chosen[:-1, : chosen.shape[1] - rank].copy()
    null = chosen[n_a] / chosen[n_a].sum()
    rank_sum = int(doubled[:n_a].sum())
    statistic = rank_sum / 2 - n_a * (n_a + 1) / 2
    ends = np.flatnonzero(null)
    smallest = min(_two_sided(null, int(ends[0])), _two_sided(null, int(ends[-1])))
    return RankTest(statistic, _two_sided(null, rank_sum), smallest)


def _two_sided(null: NDArray[np.float64], observed: int) -> float:
    """Twice the smaller tail, at most 1."""
    return float(min(1.0, 2 * min(null[: observed + 1].sum(), null[observed:].sum())))
