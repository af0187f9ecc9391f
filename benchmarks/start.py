"""How long a command takes to start: `--help`, and `train` to its first step with a warm cache.

    python -m benchmarks.start [--rounds 5]

Each is a process of its own, in turns. The clock counts, so other work on the machine is in it.
The first step is there when its line is in metrics.jsonl; a first round fills the cache.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.timing import interleave, report

QKVFLOW = [sys.executable, "-m", "qkvflow"]
TRAIN = ["train", "--size", "tiny", "--steps", "2000", "--train.log_every", "1", "--no-samples"]


def call(*words: str) -> None:
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)


def to_first_step(model: str, out: Path) -> None:
    """Train until the first step is written down, then no further."""
    command = [*QKVFLOW, *TRAIN, "--model", model, "--quiet", "--out", str(out)]
    process = subprocess.Popen(command)
    try:
        metrics = out / "metrics.jsonl"
        while not (metrics.exists() and metrics.stat().st_size):
            if process.poll() is not None:
                sys.exit(f"train ended with {process.returncode} before its first step")
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(out, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as place:
        contenders = {
            "python": lambda: call("-c", "pass"),
            "import jax": lambda: call("-c", "import jax"),
            "qkvflow --help": lambda: call("-m", "qkvflow", "--help"),
            "train, standard": lambda: to_first_step("standard", Path(place) / "standard"),
            "train, tong": lambda: to_first_step("tong", Path(place) / "tong"),
        }
        report(interleave(contenders, rounds=rounds), "import jax")


if __name__ == "__main__":
    main()
