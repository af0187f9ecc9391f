"""What random depth grids and the consistency penalty cost and buy.

    python -m benchmarks.depth_training --out DIR [--seeds 3] [--steps 300]

Trains one small model of continuous depth (`tong`, 6 steps) in each of several ways on the same
batches, evaluates each at other depths, and prints mean losses with 95 % intervals over seeds (t
distribution), differences to plain training paired by seed, and the seconds a run took.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from scipy import stats

from qkvflow.evaluation.sweep import Setting, sweep_depth
from qkvflow.runs.config import make_config
from qkvflow.runs.corpus import load_split
from qkvflow.runs.load import load
from qkvflow.training import train

WAYS = {
    "plain": {},
    "offset": {"depth_jitter": "offset"},
    "3,6,12": {"depth_jitter": "3,6,12"},
    "consistency 0.5": {"consistency": 0.5},
}
DEPTHS = (1, 2, 3, 6, 12, 24)
SHAPE = {"d_model": 48, "num_heads": 4, "context": 64, "d_time": 16, "num_steps": 6}


def measure(way: str, seed: int, steps: int, folder: Path) -> dict:
    """One run and its sweep, kept in a file so that a second call finds it."""
    kept = folder / f"{way.replace(' ', '-')}-{seed}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    config = make_config(
        {
            "model": {"name": "tong", **SHAPE},
            "data": {"spec": "stdlib?split=0.98,0.01,0.01"},
            "train": {"steps": steps, "seed": seed, "eval_every": steps, **WAYS[way]},
            "optim": {"lr": 2e-3},
        }
    )
    run = folder / f"run-{way.replace(' ', '-')}-{seed}"
    record = train(config, run)
    trained = load(run)
    split, _ = load_split(trained, "validation")
    points = sweep_depth(
        trained.model,
        split,
        [Setting("euler", depth) for depth in DEPTHS],
        composition="parallel",
        max_tokens=32768,
    )
    found = {
        "nats": {point.num_steps: point.nats for point in points},
        "seconds": record["speed"]["seconds"],
        "compile_seconds": record["speed"]["compile_seconds"],
        "flops": record["budget"]["flops"],
    }
    kept.write_text(json.dumps(found))
    return json.loads(kept.read_text())


def interval(values: np.ndarray) -> str:
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return f"{values.mean():.3f} ± {half:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    found = {
        way: [measure(way, seed, args.steps, args.out) for seed in range(args.seeds)]
        for way in WAYS
    }
    losses = {
        way: np.array([[run["nats"][str(depth)] for depth in DEPTHS] for run in runs])
        for way, runs in found.items()
    }
    plain = found["plain"]
    print("| training | " + " | ".join(f"{d} steps" for d in DEPTHS) + " | FLOPs | seconds |")
    print("|---" * (len(DEPTHS) + 3) + "|")
    for way, runs in found.items():
        cells = [interval(column) for column in losses[way].T]
        flops = runs[0]["flops"] / plain[0]["flops"]
        seconds = np.mean([run["seconds"] for run in runs])
        compiling = np.mean([run["compile_seconds"] for run in runs])
        print(f"| {way} | {' | '.join(cells)} | {flops:.2f}x | {seconds:.0f} + {compiling:.0f} |")
    print("\nDifferences to plain, paired by seed:")
    for way in list(found)[1:]:
        cells = [interval(column) for column in (losses[way] - losses["plain"]).T]
        print(f"| {way} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
