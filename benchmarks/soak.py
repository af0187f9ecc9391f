"""A long run stays small: 2,000 steps with evaluation, samples, checkpoints and tracking on.

    python -m benchmarks.soak [STEPS]

A real `qkvflow train`, watched from outside through /proc. Resident size and open file handles
after the first 200 steps are compared with those at the end: the size may grow by 2 %, the
handles not at all. Exits with 1 otherwise.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

SETTLED = 200
"""Steps after which nothing may grow."""
MOST_GROWTH = 0.02
_PERIOD = 0.2
_OPTIONS = """
    --model time-indexed-mlp --data stdlib --track tensorboard --batch-size 8
    --model.d_model 64 --model.num_heads 4 --model.num_steps 4 --model.context 32
    --train.eval_every 50 --train.eval_tokens 4096 --checkpoint.every 50
"""


@dataclasses.dataclass(frozen=True)
class Sample:
    step: int
    resident: int
    """Bytes."""
    handles: int


def watch(steps: int, out: Path) -> list[Sample]:
    """Train, and look at the process several times a second until it has made its last step."""
    command = [sys.executable, "-m", "qkvflow", "train", *_OPTIONS.split(), "--quiet"]
    process = subprocess.Popen([*command, "--steps", str(steps), "--out", str(out)])
    samples = []
    while process.poll() is None:
        time.sleep(_PERIOD)
        step = _step(out / "metrics.jsonl")
        # The last whole-split evaluation is a program of its own: it is not the loop's.
        if 0 < step < steps and (seen := _look(process.pid, step)) is not None:
            samples.append(seen)
    if process.returncode != 0:
        sys.exit(f"the run failed with exit code {process.returncode}")
    return samples


def _look(pid: int, step: int) -> Sample | None:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        handles = len(os.listdir(f"/proc/{pid}/fd"))
    except (OSError, IndexError):
        return None
    return Sample(step, pages * os.sysconf("SC_PAGE_SIZE"), handles)


def _step(metrics: Path) -> int:
    try:
        lines = metrics.read_text().splitlines()
        return int(json.loads(lines[-1])["step"])
    except (OSError, IndexError, ValueError):
        return 0


def main(steps: int) -> int:
    if not Path("/proc/self/statm").exists():
        sys.exit("this needs /proc, as on Linux")
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        samples = watch(steps, Path(directory) / "run")
    seconds = time.perf_counter() - begin
    parts = [
        [each for each in samples if start <= each.step < start + SETTLED]
        for start in range(SETTLED, steps, SETTLED)
    ]
    if not parts or not all(parts):
        sys.exit("too few samples; give more steps")
    print(f"{steps:,} steps in {seconds:.0f} s, {len(samples)} samples")
    print(f"{'from step':>9}  {'median size':>12}  {'largest':>12}  {'handles':>8}")
    for number, part in enumerate(parts, 1):
        size, peak = median(each.resident for each in part), max(each.resident for each in part)
        print(
            f"{number * SETTLED:9,}  {size / 2**20:8.1f} MiB  {peak / 2**20:8.1f} MiB  "
            f"{_handles(part):8d}"
        )
    sizes = [median(each.resident for each in part) for part in (parts[0], parts[-1])]
    growth = sizes[1] / sizes[0] - 1
    print(f"growth {growth:+.2%} (at most {MOST_GROWTH:.0%})")
    return int(growth > MOST_GROWTH or _handles(parts[-1]) > _handles(parts[0]))


def _handles(part: list[Sample]) -> int:
    """The fewest: a checkpoint being written opens some for a moment, a leak stays."""
    return min(each.handles for each in part)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000))
