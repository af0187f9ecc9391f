"""Learning rates chosen on validation, with seeds that the comparison never uses: `tuning.json`."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from qkvflow.errors import UserError
from qkvflow.experiment.plan import Plan
from qkvflow.experiment.resolve import Entry
from qkvflow.files import write_json
from qkvflow.records import Record, read_record
from qkvflow.runs.config import RunConfig
from qkvflow.runs.rundir import RECORD

FILE = "tuning.json"


def trials(plan: Plan, entry: Entry, directory: Path) -> Iterator[tuple[RunConfig, Path]]:
    """The runs that are to decide a model's learning rate, and where each lies."""
    assert plan.tune is not None
    for seed in plan.tune.seeds:
        for lr in plan.tune.grid:
            yield entry.run(seed, lr), _place(directory, entry.label, lr, seed)


def _place(directory: Path, label: str, lr: float, seed: int) -> Path:
    return directory / "tuning" / label / f"lr-{lr:g}-seed-{seed}"


def choose(plan: Plan, entries: Sequence[Entry], directory: Path) -> dict[str, float]:
    """The rate with the lowest mean loss over the tuning seeds, of every model; and the file."""
    tune = plan.tune
    assert tune is not None
    content: dict[str, Any] = {**tune.to_dict(), "split": "validation", "models": {}}
    chosen: dict[str, float] = {}
    for entry in entries:
        found = {
            (lr, seed): read_record(_place(directory, entry.label, lr, seed) / RECORD)
            for seed in tune.seeds
            for lr in tune.grid
        }
        means = {}
        for lr in tune.grid:
            losses = [found[lr, seed].loss("validation", "nats") for seed in tune.seeds]
            known = [loss for loss in losses if loss is not None]
            if len(known) == len(losses):  # A rate that failed once is out.
                means[lr] = math.fsum(known) / len(known)
        if not means:
            why = next(record.error for record in found.values())
            raise UserError(
                f"{entry.label} could not be trained at any learning rate of the grid ({why}); "
                "give others with --tune lr=X,..., or leave it out"
            )
        chosen[entry.label] = min(means, key=lambda lr: means[lr])
        content["models"][entry.label] = {
            "trials": [_trial(lr, seed, record) for (lr, seed), record in found.items()],
            "chosen": chosen[entry.label],
        }
    write_json(directory / FILE, content)
    return chosen


def _trial(lr: float, seed: int, record: Record) -> dict[str, Any]:
    loss = record.loss("validation", "nats")
    return {"lr": lr, "seed": seed, "validation": loss, "error": record.error}
