"""Is a converted model worth its third? A study of runs, each of which can be killed and resumed.

    python -m benchmarks.conversion [--out runs/conversion] [--steps N] [--seeds 5] [--workers N]

A standard model is trained on the standard library's source, past a 5-gram; converted to fields
with at most a third of its block parameters; each is trained for a tenth of the original's tokens,
with and without the original as its teacher; beside it the same architecture from scratch, with as
many FLOPs as training, converting and training on took together. The rate at which a converted
model is trained on is searched first, on a seed that the study does not use. Called again, the
study goes on where it was stopped. `--list` prints the commands and runs none.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from statistics import mean, stdev
from typing import Any

import yaml

from qkvflow.digests import read_sealed, write_sealed
from qkvflow.experiment.executors.local import worker_environment
from qkvflow.limits import cpu_limit

SHAPE = "--model standard-llama --d-model 64 --layers 6 --heads 4 --context 128 --batch-size 8"
RECIPE = "--optim.name muon --train.eval_test true --train.samples none --checkpoint.finished best"
# The largest of each field with at most a third of the six layers' parameters.
FIELDS = {
    "shared": "",
    "low-rank": "--rank 7",
    "basis": "--num-basis 2",
    "gated": "--gate both --time-features layers",
}
KINDS = ("text", "taught", "scratch")
RATES = (1e-3, 3e-3, 1e-2)
SEARCH_SEED = 1_000_001


class Study:
    def __init__(self, out: Path, data: str, steps: int, seeds: int, workers: int, list_only: bool):
        self.out, self.data, self.steps, self.seeds = out, data, steps, seeds
        self.few = max(1, steps // 10)
        self.workers, self.list_only = workers, list_only
        self.free: Queue[int] = Queue()
        for index in range(workers):
            self.free.put(index)

    def verb(self, verb: str, *words: object, out: Path) -> Path:
        """Run a command unless it has ended; go on with one that was stopped."""
        command = [verb, *map(str, words), "--out", str(out)]
        if self.list_only:
            print("qkvflow", *command)
            return out
        done = out / ("conversion.json" if verb == "convert" else "record.json")
        if not done.exists():
            begun = (out / "config.yaml").exists()
            command = ["resume", str(out)] if begun else command
            print("qkvflow", *command, flush=True)
            index = self.free.get()
            env, core = worker_environment(index, self.workers, 0)
            pinned = [] if core is None else ["taskset", "-c", str(core)]
            quiet = [] if verb == "convert" else ["--quiet"]
            try:
                subprocess.run(
                    [*pinned, sys.executable, "-m", "qkvflow", *command, *quiet],
                    check=True,
                    env=env,
                    stdout=subprocess.DEVNULL,
                )
            finally:
                self.free.put(index)
        return out

    def all(self, work: Callable[[Any], Any], places: Sequence[Any]) -> list[Any]:
        """Several pieces of work at once, each on a core of its own."""
        with ThreadPoolExecutor(self.workers) as pool:
            return list(pool.map(work, places))

    def run(self) -> None:
        self.original(SEARCH_SEED)
        if not self.list_only:
            self.past_ngrams(self.place(SEARCH_SEED) / "original")
        rates = self.search()
        self.write_plan()
        seeds = range(self.seeds)
        self.all(self.original, seeds)
        self.all(lambda seed: self.control(seed, rates["original"]), seeds)
        pairs = [(seed, field) for field in FIELDS for seed in seeds]
        self.all(lambda pair: self.field(pair[0], pair[1], rates), pairs)
        if not self.list_only:
            self.table()

    # Runs

    def place(self, seed: int) -> Path:
        return self.out / ("search" if seed == SEARCH_SEED else f"seed-{seed}")

    def train(self, seed: int) -> list[object]:
        return ["--data", self.data, "--seed", seed, "--warmup", 100, "--lr", 1e-2]

    def original(self, seed: int) -> Path:
        # Batches follow from the seed: training on with the same would begin with the same text.
        words = [*SHAPE.split(), *RECIPE.split(), "--steps", self.steps, *self.train(seed + 100)]
        return self.verb("train", *words, out=self.place(seed) / "original")

    def on(self, seed: int, rate: float) -> list[object]:
        """The options of training on."""
        options = [*RECIPE.split(), "--data", self.data, "--seed", str(seed)]
        return [*options, "--steps", self.few, "--lr", rate, "--warmup", self.few // 10]

    def control(self, seed: int, rate: float, name: str = "original-on") -> Path:
        place = self.place(seed)
        return self.verb("finetune", place / "original", *self.on(seed, rate), out=place / name)

    def converted(self, seed: int, field: str) -> Path:
        place, size = self.place(seed), FIELDS[field].split()
        words = [place / "original", "--field", field, *size]
        return self.verb("convert", *words, out=place / field / "start")

    def trained_on(self, seed: int, field: str, kind: str, rate: float, control: Path, name: str):
        place = self.place(seed)
        teach = ["--teacher", place / "original", "--control", control]
        words = [place / field / "start", *self.on(seed, rate)]
        words += teach if kind == "taught" else []
        return self.verb("finetune", *words, out=place / field / name)

    def field(self, seed: int, field: str, rates: dict[str, float]) -> None:
        start = self.converted(seed, field)
        control = self.place(seed) / "original-on"
        text, taught = (
            self.trained_on(seed, field, kind, rates[f"{field}-{kind}"], control, kind)
            for kind in KINDS[:2]
        )
        steps = self.equal_steps(self.place(seed) / "original", taught, text)
        words = [*self.scratch(start), *self.train(seed), "--steps", steps]
        self.verb("train", *words, out=self.place(seed) / field / "scratch")

    def search(self) -> dict[str, float]:
        """The best rate of each kind of training on, by validation on a seed of its own."""
        place, seed = self.place(SEARCH_SEED), SEARCH_SEED

        def control(rate: float) -> Path:
            return self.control(seed, rate, f"original-on-{rate:g}")

        runs: dict[str, dict[float, Path]] = {
            "original": dict(zip(RATES, self.all(control, RATES), strict=True))
        }
        if not self.list_only:
            self.all(lambda field: self.converted(seed, field), list(FIELDS))

        def trial(each: tuple[str, str, float]) -> Path:
            field, kind, rate = each
            beside = place / f"original-on-{rate:g}"
            return self.trained_on(seed, field, kind, rate, beside, f"{kind}-{rate:g}")

        trials = [(f, kind, rate) for f in FIELDS for kind in KINDS[:2] for rate in RATES]
        for (field, kind, rate), run in zip(trials, self.all(trial, trials), strict=True):
            runs.setdefault(f"{field}-{kind}", {})[rate] = run
        if self.list_only:
            return dict.fromkeys(runs, RATES[0])
        found = {
            label: [{"values": {"optim.lr": r}, "loss": nats(run)} for r, run in of.items()]
            for label, of in runs.items()
        }
        search = {"optim.lr": ",".join(f"{rate:g}" for rate in RATES)}
        models = {label: {"trials": trials} for label, trials in found.items()}
        content = {"search": search, "seeds": [seed], "models": models}
        write_sealed(self.out / "tuning.json", content)
        best = {label: min(of, key=lambda each: each["loss"]) for label, of in found.items()}
        return {label: each["values"]["optim.lr"] for label, each in best.items()}

    # What is known of them

    def write_plan(self) -> None:
        asked = [("is a teacher better than the text alone?", "taught", "text")]
        asked += [("is converting better than training from scratch?", "taught", "scratch")]
        questions = [
            {"name": f"Of {field}, {name}", "a": f"{field}-{a}", "b": f"{field}-{b}"}
            for name, a, b in asked
            for field in FIELDS
        ]
        command = f"python -m benchmarks.conversion --steps {self.steps} --seeds {self.seeds}"
        plan = {
            "title": "Is a converted model worth its third?",
            "command": f"{command} --data '{self.data}' --out {self.out}",
            "questions": questions,
        }
        if not self.list_only:
            (self.out / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False), "utf-8")

    def past_ngrams(self, original: Path) -> None:
        """The original has to know more than counts do; they are kept beside the runs."""
        from qkvflow.evaluation.baselines import measure_baselines
        from qkvflow.runs.config import make_config
        from qkvflow.runs.corpus import load_data
        from qkvflow.runs.rundir import read_run_config

        place = self.out / "baselines.json"
        if not place.exists():
            config = make_config(read_run_config(original))
            seen = self.steps * config.tokens_per_step
            write_sealed(place, measure_baselines(load_data(config), seen))
        counts = next(
            each["validation"]
            for each in read_sealed(place)["ngrams"]
            if (each["order"], each["smoothing"]) == (5, "witten-bell")
        )
        loss = nats(original)
        print(f"original {loss:.4f}, 5-gram {counts:.4f} nats/token", flush=True)
        if loss >= counts:
            sys.exit("the original is not past a 5-gram: give more --steps, and another --out")

    def scratch(self, start: Path) -> list[str]:
        """The architecture of a converted model, as options."""
        if self.list_only:
            return ["ARCHITECTURE"]
        model = json.loads((start / "config.json").read_text())["config"]["model"]
        chosen = [
            word
            for name, value in model.items()
            for word in (f"--model.{name}", "none" if value is None else str(value).lower())
            if name not in ("name", "size")
        ]
        return [*RECIPE.split(), "--batch-size", "8", *chosen]

    def equal_steps(self, original: Path, taught: Path, text: Path) -> int | str:
        """Steps of the architecture whose FLOPs are those of the original and what came after."""
        if self.list_only:
            return "EQUAL_FLOPS"
        total = sum(record(each)["budget"]["flops"] for each in (original, taught))
        return max(1, round(total / record(text)["flops"]["per_step"]))

    def table(self) -> None:
        rows = {"original": "original", "original, trained on": "original-on"}
        for field in FIELDS:
            rows |= {f"{field}, {kind}": f"{field}/{kind}" for kind in KINDS}
        print(f"{'':24}{'blocks':>12}{'test, nats/token':>28}")
        for name, place in rows.items():
            found = [record(self.out / f"seed-{s}" / place) for s in range(self.seeds)]
            losses = [each["losses"]["test"]["nats"] for each in found]
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
    parser.add_argument("--data", default="stdlib?split=0.995,0.0025,0.0025")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=cpu_limit())
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    Study(args.out, args.data, args.steps, args.seeds, args.workers, args.list).run()
