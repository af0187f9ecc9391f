"""Is a converted model worth its third? A study of runs, each of which can be killed and resumed.

    python -m benchmarks.conversion [--out runs/conversion] [--steps 4000] [--seeds 5] [--list]

A standard model is trained on the standard library's source, past a 5-gram; converted to fields
with at most a third of its block parameters; each is trained for a tenth of the original's tokens,
with and without the original as its teacher; beside it the same architecture from scratch, with as
many FLOPs as training, converting and training on took together. Called again, the study goes on
where it was stopped. `--list` prints the commands and runs none.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

SHAPE = [
    "--d-model",
    "128",
    "--layers",
    "6",
    "--heads",
    "4",
    "--context",
    "128",
    "--batch-size",
    "16",
]
QUIET = ["--quiet", "--train.samples", "none", "--checkpoint.finished", "best"]
# The largest of each field with at most a third of the six layers' parameters.
FIELDS = {
    "cycle": ["--layers-per-loop", "2"],
    "shared": [],
    "low-rank": ["--rank", "15"],
    "basis": ["--num-basis", "2"],
    "gated": [],
}


class Study:
    def __init__(self, out: Path, data: str, steps: int, seeds: int, list_only: bool):
        self.out, self.data, self.steps, self.seeds = out, data, steps, seeds
        self.list_only = list_only

    def verb(self, verb: str, *words: object, out: Path) -> Path:
        """Run a command unless it has ended; go on with one that was stopped."""
        command = [verb, *map(str, words), "--out", str(out)]
        if self.list_only:
            print("qkvflow", *command)
            return out
        done = out / ("conversion.json" if verb == "convert" else "record.json")
        if not done.exists():
            begun = (out / "config.yaml").exists()
            command = ["resume", str(out), "--quiet"] if begun else command
            print("qkvflow", *command, flush=True)
            subprocess.run([sys.executable, "-m", "qkvflow", *command], check=True)
        return out

    def run(self) -> None:
        few = max(1, self.steps // 10)
        for seed in range(self.seeds):
            place = self.out / f"seed-{seed}"
            train = ["--data", self.data, "--seed", seed, *QUIET]
            original = self.verb(
                "train", *SHAPE, "--steps", self.steps, *train, out=place / "original"
            )
            if not seed and not self.list_only:
                self.past_ngrams(original)
            on = [*train, "--steps", few, "--lr", "3e-4", "--warmup", few // 10]
            control = self.verb("finetune", original, *on, out=place / "original-on")
            for field, size in FIELDS.items():
                start = self.verb(
                    "convert", original, "--field", field, *size, out=place / field / "start"
                )
                text = self.verb("finetune", start, *on, out=place / field / "text")
                teach = ["--teacher", original, "--control", control]
                taught = self.verb("finetune", start, *on, *teach, out=place / field / "taught")
                self.verb(
                    "train",
                    *self.scratch(start),
                    *train,
                    "--steps",
                    self.equal_steps(original, taught, text),
                    out=place / field / "scratch",
                )
        if not self.list_only:
            self.table()

    def past_ngrams(self, original: Path) -> None:
        """The original has to know more than counts do."""
        from qkvflow.evaluation.ngrams import ngram_losses
        from qkvflow.runs.config import make_config
        from qkvflow.runs.corpus import load_data
        from qkvflow.runs.rundir import read_run_config

        counts = ngram_losses(load_data(make_config(read_run_config(original))), 5)[-1]
        loss = nats(original)
        print(f"original {loss:.4f}, 5-gram {counts['validation']:.4f} nats/token", flush=True)
        if loss >= counts["validation"]:
            sys.exit("the original is not past a 5-gram: give more --steps, and another --out")

    def scratch(self, start: Path) -> list[str]:
        """The architecture of a converted model, as options."""
        if self.list_only:
            return ["ARCHITECTURE"]
        model = json.loads((start / "config.json").read_text())["config"]["model"]
        return [
            word
            for name, value in model.items()
            for word in (f"--model.{name}", "none" if value is None else str(value).lower())
            if name not in ("name", "size")
        ]

    def equal_steps(self, original: Path, taught: Path, text: Path) -> int | str:
        """Steps of the architecture whose FLOPs are those of the original and what came after."""
        if self.list_only:
            return "EQUAL_FLOPS"
        total = sum(record(each)["budget"]["flops"] for each in (original, taught))
        return max(1, round(total / record(text)["flops"]["per_step"]))

    def table(self) -> None:
        rows = {"original": "original", "original, trained on": "original-on"}
        for field in FIELDS:
            rows |= {
                f"{field}, {kind}": f"{field}/{kind}" for kind in ("text", "taught", "scratch")
            }
        print(f"{'':24}{'blocks':>12}{'validation, nats/token':>28}")
        for name, place in rows.items():
            found = [record(self.out / f"seed-{s}" / place) for s in range(self.seeds)]
            losses = [each["losses"]["validation"]["nats"] for each in found]
            spread = f" ± {stdev(losses):.4f}" if len(losses) > 1 else ""
            blocks = found[0]["params"]["blocks"]
            print(f"{name:24}{blocks:12,}{f'{mean(losses):.4f}{spread}':>28}")


def record(run: Path) -> dict[str, Any]:
    return json.loads((run / "record.json").read_text())


def nats(run: Path) -> float:
    return record(run)["losses"]["validation"]["nats"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conversion")
    parser.add_argument("--out", type=Path, default=Path("runs/conversion"))
    parser.add_argument("--data", default="stdlib")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    Study(args.out, args.data, args.steps, args.seeds, args.list).run()
