"""Learning rates chosen on validation, with seeds that the comparison never uses: `tuning.json`."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qkvflow.experiment.group import Group, Hooks, Member
from qkvflow.experiment.plan import Plan
from qkvflow.experiment.resolve import Entry
from qkvflow.files import write_json, write_whole
from qkvflow.training.config_files import write_yaml
from qkvflow.training.rundir import CONFIG

FILE = "tuning.json"


def chosen_rates(directory: Path) -> dict[str, float]:
    """The learning rate of every model that has been tuned."""
    models = _read(directory).get("models", {})
    return {label: each["chosen"] for label, each in models.items() if each.get("chosen")}


def pending_trials(plan: Plan, entry: Entry, directory: Path) -> list[tuple[float, int]]:
    """(learning rate, seed) still to be tried for a model."""
    assert plan.tune is not None
    trials = _read(directory).get("models", {}).get(entry.label, {}).get("trials", [])
    known = {(trial["lr"], trial["seed"]) for trial in trials}
    wanted = [(lr, seed) for lr in plan.tune.grid for seed in plan.tune.seeds]
    return [each for each in wanted if each not in known]


def tune(
    plan: Plan,
    entry: Entry,
    directory: Path,
    make_ensemble: Callable[[], Any],
    hooks: Hooks,
) -> None:
    """Try what is still to be tried, in groups of the ensemble's size, and choose."""
    while pending := pending_trials(plan, entry, directory):
        ensemble = make_ensemble()
        members = [
            Member(seed, lr, _place(entry, lr, seed, directory))
            for lr, seed in pending[: ensemble.size]
        ]
        for member in members:
            member.directory.mkdir(parents=True, exist_ok=True)
            text = write_yaml(entry.run(member.seed, member.lr))
            write_whole(member.directory / CONFIG, text)
        snapshot = directory / "state" / f"{entry.label}.tuning.safetensors"
        Group(ensemble, members, snapshot, hooks).run()
        _note(plan, entry, directory, members)
        snapshot.unlink(missing_ok=True)


def _place(entry: Entry, lr: float, seed: int, directory: Path) -> Path:
    return directory / "tuning" / entry.label / f"lr-{lr:g}-seed-{seed}"


def _note(plan: Plan, entry: Entry, directory: Path, members: Sequence[Member]) -> None:
    assert plan.tune is not None
    content = _read(directory) or {**plan.tune.to_dict(), "split": "validation", "models": {}}
    mine = content["models"].setdefault(entry.label, {"trials": [], "chosen": None})
    for member in members:
        loss = None if member.error else member.progress.best_loss
        trial = {"lr": member.lr, "seed": member.seed, "validation": loss, "error": member.error}
        mine["trials"].append(trial)
    mine["chosen"] = _choose(plan, mine["trials"])
    write_json(directory / FILE, content)


def _choose(plan: Plan, trials: Sequence[dict[str, Any]]) -> float | None:
    """The lowest mean loss over the tuning seeds; a rate that failed once is out."""
    assert plan.tune is not None
    means: dict[float, float] = {}
    for lr in plan.tune.grid:
        losses = [trial["validation"] for trial in trials if trial["lr"] == lr]
        if len(losses) == len(plan.tune.seeds) and None not in losses:
            means[lr] = math.fsum(losses) / len(losses)
    complete = len(trials) == len(plan.tune.grid) * len(plan.tune.seeds)
    return min(means, key=lambda lr: means[lr]) if complete and means else None


def _read(directory: Path) -> dict[str, Any]:
    try:
        return json.loads((directory / FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
