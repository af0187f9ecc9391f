"""How often the intervals of a fitted scaling law hold what they should: 200 simulated grids.

python -m benchmarks.scaling_law [SIMULATIONS]
"""

import sys

import numpy as np

from qkvflow.statistics.scaling_law import Fit, Runs, fit

TRUE = {"A": 60.0, "B": 120.0, "E": 1.3, "alpha": 0.35, "beta": 0.4, "phi": 0.5}
NOISE = 0.004


def simulate(seed: int) -> Runs:
    """Five widths, four numbers of repeats, three of tokens; a tenth of the weights used once."""
    cells = [
        (1.2 * width**2, 12.0 * width**2, float(repeats), tokens)
        for width in (32, 48, 64, 96, 128)
        for repeats in (1, 2, 4, 8)
        for tokens in (3e5, 1e6, 3e6)
    ]
    once, shared, repeats, tokens = np.array(cells).T
    loss = Fit(TRUE, {}, (), ()).loss(once, shared, repeats, tokens)
    noise = np.random.default_rng(seed).normal(0, NOISE, len(cells))
    return Runs(once, shared, repeats, tokens, loss * np.exp(noise))


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    hits = dict.fromkeys(TRUE, 0)
    for seed in range(count):
        found = fit(simulate(seed), resamples=200, seed=seed)
        for name, value in TRUE.items():
            low, high = found.intervals[name]
            hits[name] += low <= value <= high
    for name, each in hits.items():
        print(f"{name}: within its interval in {each / count:.1%} of {count} simulations")


if __name__ == "__main__":
    main()
