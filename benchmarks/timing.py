"""Side-by-side timing: every contender once per round, medians over rounds, ratios of medians.

A shared machine drifts; contenders that take turns drift together.
"""

import time
from collections.abc import Callable, Mapping

import numpy as np


def interleave(
    contenders: Mapping[str, Callable[[], None]],
    *,
    rounds: int,
    repeats: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, np.ndarray]:
    """Seconds per call of each contender in each round, after one round to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, call in contenders.items():
            start = clock()
            for _ in range(repeats):
                call()
            if number:
                seconds[name].append((clock() - start) / repeats)
    return {name: np.asarray(values) for name, values in seconds.items()}


def report(seconds: Mapping[str, np.ndarray], reference: str) -> None:
    """Median and quartiles in milliseconds, and the median of the ratios to the reference."""
    width = max(map(len, seconds))
    print(f"{'':<{width}}  {'median ms':>10}  {'quartiles':>15}  {'x ' + reference:>10}")
    for name, values in seconds.items():
        low, middle, high = np.percentile(values * 1e3, [25, 50, 75])
        ratio = np.median(values / seconds[reference])
        print(f"{name:<{width}}  {middle:10.1f}  {low:7.1f}-{high:<7.1f}  {ratio:10.2f}")
