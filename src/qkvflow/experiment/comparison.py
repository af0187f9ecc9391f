"""Running a plan: models x seeds x one budget, as ordinary runs on an executor.

Everything that is finished is in files; the same command goes on from them. See docs/comparison.md.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from qkvflow.compilation import use_compilation_cache
from qkvflow.data import EncodedCorpus
from qkvflow.digests import was_altered, write_sealed
from qkvflow.errors import UserError
from qkvflow.evaluation.baselines import measure_baselines
from qkvflow.experiment.display import Display, SilentDisplay
from qkvflow.experiment.executors import AbstractExecutor, ExecutorOptions, make_executor, perform
from qkvflow.experiment.plan import Plan, difference
from qkvflow.experiment.resolve import Entry, describe, shapes, with_steps
from qkvflow.experiment.search import Search
from qkvflow.experiment.study import Studies, Study, import_optuna
from qkvflow.experiment.tuning import none_ended, tuned
from qkvflow.experiment.units import Queue, Unit
from qkvflow.files import write_whole
from qkvflow.records import altered_files, read_record
from qkvflow.runs import rundir
from qkvflow.runs.config import make_config
from qkvflow.runs.config_files import read_yaml
from qkvflow.runs.corpus import load_data
from qkvflow.training.signals import signals

PLAN, SPEED, BASELINES, LOGS = "plan.yaml", "speed.json", "baselines.json", "logs"
TUNING = "tuning.json"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a comparison ended."""

    directory: Path
    finished: int
    failed: tuple[str, ...]
    """`label seed s: reason` of every run that failed."""
    notes: tuple[str, ...] = ()
    """Files that were altered on the way."""


def run_plan(
    plan: Plan,
    out: str | Path,
    *,
    executor: AbstractExecutor | None = None,
    display: Display | None = None,
    retry_failed: bool = False,
    command: str | None = None,
) -> Outcome:
    """Run a plan in a directory, or go on with it. A signal ends in `Stopped`, with all saved."""
    use_compilation_cache()
    directory = Path(out)
    check_directory(plan, directory)
    if plan.tune is not None:
        import_optuna()
    encoded = load_data(plan.base_config(plan.models[0]))
    entries = shapes(plan, encoded.tokenizer.vocab_size)
    executor = executor or make_executor("local", ExecutorOptions())
    with rundir.writing(directory, resumable=False):
        directory.mkdir(parents=True, exist_ok=True)
    with rundir.locked(directory), signals() as caught:
        comparison = _Comparison(
            plan, directory, encoded, entries, executor, display or SilentDisplay(), caught
        )
        try:
            return comparison.run(retry_failed=retry_failed, command=command)
        finally:
            comparison.display.stop()


def check_directory(plan: Plan, directory: Path) -> dict[str, Any]:
    """Refuse a directory that holds something else; returns the plan it holds, if any."""
    if not (directory / PLAN).exists():
        kept = [p for p in directory.iterdir() if p.name[0] != "."] if directory.is_dir() else []
        if kept or (directory.exists() and not directory.is_dir()):
            raise UserError(
                f"{directory} holds no comparison and is not empty; choose another --out"
            )
        return {}
    written = read_yaml(directory / PLAN)
    beside = ("resolved", "command")
    old = {key: value for key, value in written.items() if key not in beside}
    if (differs := difference(old, plan.to_dict())) is not None:
        raise UserError(
            f"{directory} holds another comparison: {differs}; choose another --out, or delete it"
        )
    return written


class _Comparison:
    """One comparison in its directory."""

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        encoded: EncodedCorpus,
        entries: list[Entry],
        executor: AbstractExecutor,
        display: Display,
        caught: list[int],
    ) -> None:
        self.plan, self.directory, self.encoded = plan, directory, encoded
        self.entries, self.display = entries, display
        self._executor, self._caught = executor, caught

    def run(self, *, retry_failed: bool, command: str | None) -> Outcome:
        timed = self.plan.budget.kind == "seconds"
        if not timed:
            self.entries = with_steps(self.plan, self.entries)
        self._write_plan(command)
        if timed:
            self.entries = with_steps(self.plan, self.entries, self._seconds_per_step())
        if retry_failed:
            self._forget_failures()
        if not _read_json(self.directory / BASELINES):
            self.display.note("counting n-grams")
            seen = max(entry.steps * entry.config.tokens_per_step for entry in self.entries)
            write_sealed(self.directory / BASELINES, measure_baselines(self.encoded, seen))
        self._tune()
        runs = [
            entry.run(
                seed,
                self.run_dir(entry.label, seed),
                f"seed {seed}",
                group=self.directory.name,
            )
            for seed in self.plan.seeds
            for entry in self.entries
        ]
        self._perform("training", Queue(runs), runs)
        self._measure_speed()
        return self._outcome()

    def _perform(self, what: str, queue: Queue, expected: Sequence[Unit]) -> None:
        """Everything that is not done yet, by the executor."""
        perform(
            self._executor,
            queue,
            expected,
            what=what,
            logs=self.directory / LOGS,
            display=self.display,
            caught=self._caught,
        )

    # Before training

    def _write_plan(self, command: str | None) -> None:
        resolved = describe(self.plan, self.entries, self.encoded)
        if written := check_directory(self.plan, self.directory):
            if (differs := difference(written.get("resolved", {}), resolved)) is not None:
                raise UserError(
                    f"{self.directory} was begun with another corpus or version: {differs}; choose "
                    "another --out, or delete it"
                )
            return
        content = {**self.plan.to_dict(), "command": command, "resolved": resolved}
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        with rundir.writing(self.directory, resumable=False):
            write_whole(self.directory / PLAN, text)

    def _seconds_per_step(self) -> dict[str, float]:
        """Of every model, measured beside the others, for a budget in seconds."""
        self._measure_speed()
        speed = _read_json(self.directory / SPEED)
        times = {
            label: each["ms_per_step"]["median"] / 1e3 for label, each in speed["models"].items()
        }
        for entry in self.entries:
            if entry.label not in times:
                why = speed["failed"].get(entry.label, "unknown")
                raise UserError(f"{entry.label} cannot be timed ({why}); leave it out")
        return times

    def _forget_failures(self) -> None:
        for entry in self.entries:
            for seed in self.plan.seeds:
                path = self.run_dir(entry.label, seed) / rundir.RECORD
                if path.exists() and not read_record(path).finished:
                    path.unlink()

    def _tune(self) -> None:
        """Trials are runs like any other; their losses decide each model's optimiser."""
        search = self.plan.tune
        if search is None:
            return
        studies = {entry.label: self._study(entry, search) for entry in self.entries}
        expected = [
            Unit("", {}, self.directory / "none", entry.flops_per_step * entry.steps, "")
            for entry in self.entries
            for _ in range(studies[entry.label].left)
        ]
        queue = Queue([], Studies(list(studies.values())))
        queue.bytes = max(entry.bytes for entry in self.entries)
        self._perform("the search", queue, expected)
        found = {label: study.describe() for label, study in studies.items()}
        for label, each in found.items():
            if each["best"] is None:
                why = none_ended(each, f" of {label}")
                self.display.note(f"{why}; it is trained as it is configured")
        self.entries = [
            dataclasses.replace(entry, config=tuned(entry.config, found[entry.label]["values"]))
            for entry in self.entries
        ]
        rates = {entry.label: entry.config.optim.lr for entry in self.entries}
        models = {label: {**each, "chosen": rates[label]} for label, each in found.items()}
        write_sealed(self.directory / TUNING, {**search.to_dict(), "models": models})

    def _study(self, entry: Entry, search: Search) -> Study:
        def unit(changes: dict[str, Any], seed: int, directory: Path, title: str) -> Unit:
            unseen = {"train": {"eval_test": False}}
            config = make_config(entry.config.to_dict(), unseen, changes)
            changed = dataclasses.replace(entry, config=config)
            return changed.run(seed, directory, title, group=self.directory.name)

        place = self.directory / "tuning" / entry.label
        return Study(place, search, unit, evaluations=self.plan.evaluations)

    # After training

    def run_dir(self, label: str, seed: int) -> Path:
        return self.directory / "runs" / label / f"seed-{seed}"

    def _measure_speed(self) -> None:
        rounds = self.plan.speed_rounds
        if self.plan.budget.kind == "seconds":
            rounds = max(rounds, 3)
        path = self.directory / SPEED
        known = _read_json(path)
        labels = {entry.label for entry in self.entries}
        if not rounds or labels <= set(known.get("models", {})) | set(known.get("failed", {})):
            return
        path.unlink(missing_ok=True)
        job = {
            "kind": "speed",
            "out": str(path.resolve()),
            "configs": {entry.label: entry.config.to_dict() for entry in self.entries},
            "vocab_size": self.encoded.tokenizer.vocab_size,
            "rounds": rounds,
        }
        title = f"speed of {len(self.entries)} models in turn"
        units = [Unit(title, job, path, work=1.0, program="speed")]
        self._perform("speed", Queue(units), units)
        for label, why in _read_json(path).get("failed", {}).items():
            self.display.note(f"{label} was not timed: {why}")

    def _outcome(self) -> Outcome:
        finished, failed, notes = 0, [], []
        for entry in self.entries:
            for seed in self.plan.seeds:
                record = read_record(self.run_dir(entry.label, seed) / rundir.RECORD)
                finished += record.finished
                notes += altered_files(record)
                if not record.finished:
                    failed.append(f"{entry.label} seed {seed}: {record.error}")
        return Outcome(self.directory, finished, tuple(failed), tuple(notes))


def _read_json(path: Path) -> dict[str, Any]:
    """What a file says, or nothing if it is not there or not as it was: it is made again."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) and not was_altered(content) else {}
