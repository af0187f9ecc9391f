"""Running a plan: models x seeds x one budget, to records on disk.

Everything that is finished is in files; the same command goes on from them. See docs/comparison.md.
"""

import contextlib
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from qkvflow.data import EncodedCorpus
from qkvflow.errors import UserError
from qkvflow.experiment import tuning
from qkvflow.experiment.baselines import measure_baselines
from qkvflow.experiment.depths import evaluate_depths
from qkvflow.experiment.ensemble import Ensemble
from qkvflow.experiment.finish import record_of, write_sample, write_weights
from qkvflow.experiment.group import Group, Hooks, Member, Stopped
from qkvflow.experiment.plan import Plan, difference
from qkvflow.experiment.plugins import load_plugins
from qkvflow.experiment.records import read_record, write_record
from qkvflow.experiment.resolve import Entry, describe, shapes, with_steps
from qkvflow.experiment.snapshot import read_host
from qkvflow.experiment.speed import measure_speed
from qkvflow.experiment.watch import Silent, Watch
from qkvflow.files import write_json, write_whole
from qkvflow.training import rundir
from qkvflow.training.config_files import read_yaml, write_yaml
from qkvflow.training.evaluate import Evaluation
from qkvflow.training.loop import signals
from qkvflow.training.run import load_data, use_compilation_cache

PLAN, SPEED, BASELINES, STATE = "plan.yaml", "speed.json", "baselines.json", "state"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a comparison ended."""

    directory: Path
    finished: int
    failed: tuple[str, ...]
    """`label seed s: reason` of every run that failed."""


def run_plan(
    plan: Plan,
    out: str | Path,
    *,
    watch: Watch | None = None,
    seeds_per_program: int | None = None,
    retry_failed: bool = False,
    command: str | None = None,
) -> Outcome:
    """Run a plan in a directory, or go on with it. A signal ends in `Stopped`, with all saved."""
    use_compilation_cache()
    directory = Path(out)
    load_plugins(plan.plugins)
    check_directory(plan, directory)
    encoded = load_data(plan.base_config(plan.models[0]))
    entries = shapes(plan, encoded.tokenizer.vocab_size)
    with rundir.writing(directory, resumable=False):
        directory.mkdir(parents=True, exist_ok=True)
    with rundir.locked(directory), signals() as caught:
        runner = Runner(
            plan, directory, encoded, entries, watch or Silent(), seeds_per_program, caught
        )
        try:
            return runner.run(retry_failed=retry_failed, command=command)
        finally:
            runner.watch.stop()


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


class Runner:
    """One comparison in its directory."""

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        encoded: EncodedCorpus,
        entries: list[Entry],
        watch: Watch,
        seeds_per_program: int | None,
        caught: list[int],
    ) -> None:
        self.plan, self.directory, self.encoded = plan, directory, encoded
        self.entries, self.watch = entries, watch
        self._size, self._caught = seeds_per_program, caught

    def run(self, *, retry_failed: bool, command: str | None) -> Outcome:
        timed = self.plan.budget.kind == "seconds"
        if not timed:
            self.entries = with_steps(self.plan, self.entries)
        self._write_plan(command)
        if timed:
            self._measure_speed()
            times = _read_json(self.directory / SPEED)["models"]
            seconds = {label: each["ms_per_step"]["median"] / 1e3 for label, each in times.items()}
            self._require(seconds)
            self.entries = with_steps(self.plan, self.entries, seconds)
        if retry_failed:
            self._forget_failures()
        if not (self.directory / BASELINES).exists():
            self.watch.busy("counting n-grams")
            write_json(self.directory / BASELINES, measure_baselines(self.encoded))
            self._check_stop()
        self._train()
        self.watch.stop()
        self._measure_speed()
        return self._outcome()

    def _require(self, seconds: dict[str, float]) -> None:
        for entry in self.entries:
            if entry.label not in seconds:
                why = _read_json(self.directory / SPEED)["failed"].get(entry.label, "unknown")
                raise UserError(f"{entry.label} cannot be timed ({why}); leave it out")

    def _write_plan(self, command: str | None) -> None:
        resolved = describe(self.plan, self.entries, self.encoded)
        written = check_directory(self.plan, self.directory) if self._has_plan() else {}
        if written:
            differs = difference(written.get("resolved", {}), resolved)
            if differs is not None:
                raise UserError(
                    f"{self.directory} was begun with another corpus or version: {differs}; choose "
                    "another --out, or delete it"
                )
            return
        content = {**self.plan.to_dict(), "command": command, "resolved": resolved}
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        with rundir.writing(self.directory, resumable=False):
            write_whole(self.directory / PLAN, text)

    def _has_plan(self) -> bool:
        return (self.directory / PLAN).exists()

    # Training

    def run_dir(self, label: str, seed: int) -> Path:
        return self.directory / "runs" / label / f"seed-{seed}"

    def _has_record(self, label: str, seed: int) -> bool:
        return (self.run_dir(label, seed) / rundir.RECORD).exists()

    def _forget_failures(self) -> None:
        for entry in self.entries:
            for seed in self.plan.seeds:
                path = self.run_dir(entry.label, seed) / rundir.RECORD
                if path.exists() and not read_record(path).finished:
                    path.unlink()

    def _train(self) -> None:
        plan = self.plan
        trials = 0 if plan.tune is None else len(plan.tune.grid) * len(plan.tune.seeds)
        done = total = 0.0
        for entry in self.entries:
            work = entry.flops_per_step * entry.steps
            left = (
                0 if plan.tune is None else len(tuning.pending_trials(plan, entry, self.directory))
            )
            recorded = sum(self._has_record(entry.label, seed) for seed in plan.seeds)
            total += work * (len(plan.seeds) + trials)
            done += work * (recorded + trials - left)
        if done < total:
            self.watch.start(total, done)
        for number, entry in enumerate(self.entries, start=1):
            self._train_entry(entry, f"{entry.label} ({number} of {len(self.entries)})")

    def _train_entry(self, entry: Entry, title: str) -> None:
        made: list[Ensemble] = []
        snapshot = self.directory / STATE / f"{entry.label}.safetensors"

        def ensemble() -> Ensemble:
            if not made:
                self.watch.busy(f"{title}: compiling")
                each = Ensemble(entry.config, self.encoded)
                paused = read_host(snapshot)
                each.compile(len(self.plan.seeds), paused["size"] if paused else self._size)
                made.append(each)
            return made[0]

        try:
            lr = self._rate(entry, ensemble, title)
            while pending := self._next_group(entry, snapshot):
                group = self._group(entry, ensemble(), pending, lr, snapshot, title)
                group.run()
                self._finish(entry, group)
                snapshot.unlink(missing_ok=True)
        except (Stopped, UserError):
            raise
        except Exception as error:
            self._fail(entry, error)
            snapshot.unlink(missing_ok=True)

    def _rate(self, entry: Entry, ensemble: Any, title: str) -> float:
        if self.plan.tune is None:
            return entry.config.optim.lr
        hooks = self._hooks(entry, f"{title}: learning rates")
        tuning.tune(self.plan, entry, self.directory, ensemble, hooks)
        chosen = tuning.chosen_rates(self.directory).get(entry.label)
        if chosen is None:
            raise RuntimeError("no learning rate of the grid could be trained on")
        return chosen

    def _next_group(self, entry: Entry, snapshot: Path) -> list[int]:
        """The seeds of the group that was interrupted, or those still to be run."""
        pending = [s for s in self.plan.seeds if not self._has_record(entry.label, s)]
        if pending and (host := read_host(snapshot)) is not None:
            seeds = [each["seed"] for each in host["members"]]
            if set(seeds) & set(pending):
                return seeds
        return pending

    def _group(
        self,
        entry: Entry,
        ensemble: Ensemble,
        seeds: list[int],
        lr: float,
        snapshot: Path,
        title: str,
    ) -> Group:
        members = []
        for seed in seeds[: ensemble.size]:
            directory = self.run_dir(entry.label, seed)
            with rundir.writing(self.directory):
                directory.mkdir(parents=True, exist_ok=True)
                write_whole(directory / rundir.CONFIG, write_yaml(entry.run(seed, lr)))
            members.append(Member(seed, lr, directory))
        return Group(ensemble, members, snapshot, self._hooks(entry, title))

    def _hooks(self, entry: Entry, title: str) -> Hooks:
        at = {"step": 0}

        def begun(step: int, runs: int) -> None:
            at["step"] = step
            self.watch.advance(step * runs * entry.flops_per_step, f"{title}: step {step}")

        def advanced(steps: int, runs: int, loss: float) -> None:
            at["step"] += steps
            text = f"{title}: step {at['step']}/{entry.steps}, loss {loss:.3f}"
            self.watch.advance(steps * runs * entry.flops_per_step, text)

        def stopping() -> int | None:
            return self._caught[0] if self._caught else None

        return Hooks(begun, advanced, stopping)

    def _check_stop(self) -> None:
        if self._caught:
            raise Stopped(self._caught[0])

    # Records

    def _finish(self, entry: Entry, group: Group) -> None:
        """Losses at the selected parameters, samples, and the records of a group."""
        open_ones = [m for m in group.members if not self._has_record(entry.label, m.seed)]
        alive = [m for m in open_ones if m.error is None]
        tests: dict[int, Evaluation | None] = {}
        if alive:
            self.watch.busy(f"{entry.label}: final losses")
            group.final_losses()
            if len(self.encoded.test) > 1:
                found = group.evaluate_best("test")
                tests = {m.seed: each for m, each in zip(group.members, found, strict=True)}
        depths: dict[int, list[dict[str, Any]]] = {}
        if alive and self.plan.depths:
            self.watch.busy(f"{entry.label}: other depths")
            try:
                each = evaluate_depths(
                    group.ensemble, [member.best for member in alive], self.plan.depths
                )
                depths = {m.seed: mine for m, mine in zip(alive, each, strict=True)}
            except Exception as error:
                self.watch.note(f"{entry.label}: no losses at other depths: {_one_line(error)}")
        for member in open_ones:
            if member.error is None and self.plan.samples == "last":
                write_sample(group.ensemble, member)
            record = record_of(entry, group.ensemble, member, tests.get(member.seed))
            if member.seed in depths:
                record["evaluations"] = depths[member.seed]
            if member.error is None and self._keeps(member.seed):
                write_weights(entry, group.ensemble, member, record)
            with rundir.writing(member.directory):
                write_record(member.directory / rundir.RECORD, record)
        self._report(entry, open_ones, tests)

    def _keeps(self, seed: int) -> bool:
        first = self.plan.weights == "first" and seed == self.plan.seeds[0]
        return first or self.plan.weights == "all"

    def _report(
        self, entry: Entry, members: list[Member], tests: dict[int, Evaluation | None]
    ) -> None:
        losses = []
        for member in members:
            if member.error is not None:
                self.watch.note(f"{entry.label} seed {member.seed} FAILED: {member.error}")
            elif member.validation is not None:
                test = tests.get(member.seed)
                losses.append((test or member.validation).nats)
        if losses:
            split = "test" if any(tests.values()) else "validation"
            each = ", ".join(f"{loss:.4f}" for loss in losses)
            self.watch.note(f"{entry.label}: {split} loss {each} nats per token")

    def _fail(self, entry: Entry, error: Exception) -> None:
        """A record for every run that an exception kept from finishing."""
        reason = _one_line(error)
        ensemble = Ensemble(entry.config, self.encoded)
        ensemble.size = 1
        for seed in self.plan.seeds:
            if self._has_record(entry.label, seed):
                continue
            directory = self.run_dir(entry.label, seed)
            member = Member(seed, entry.config.optim.lr, directory, error=reason)
            with rundir.writing(self.directory):
                directory.mkdir(parents=True, exist_ok=True)
                write_whole(directory / rundir.CONFIG, write_yaml(entry.run(seed)))
                write_record(directory / rundir.RECORD, record_of(entry, ensemble, member, None))
            self.watch.note(f"{entry.label} seed {seed} FAILED: {reason}")

    # Beside the records

    def _measure_speed(self) -> None:
        rounds = self.plan.speed_rounds
        if self.plan.budget.kind == "seconds":
            rounds = max(rounds, 3)
        path = self.directory / SPEED
        known = _read_json(path)
        labels = {entry.label for entry in self.entries}
        if not rounds or labels <= set(known.get("models", {})) | set(known.get("failed", {})):
            return
        content = measure_speed(
            {entry.label: entry.config for entry in self.entries},
            vocab_size=self.encoded.tokenizer.vocab_size,
            rounds=rounds,
            plugins=self.plan.plugins,
            told=self._told,
        )
        for label, why in content["failed"].items():
            self.watch.note(f"{label} was not timed: {why}")
        write_json(path, content)

    def _told(self, text: str) -> None:
        self._check_stop()
        self.watch.busy(text)

    def _outcome(self) -> Outcome:
        finished, failed = 0, []
        for entry in self.entries:
            for seed in self.plan.seeds:
                record = read_record(self.run_dir(entry.label, seed) / rundir.RECORD)
                finished += record.finished
                if not record.finished:
                    failed.append(f"{entry.label} seed {seed}: {record.error}")
        with contextlib.suppress(OSError):
            shutil.rmtree(self.directory / STATE)
        return Outcome(self.directory, finished, tuple(failed))


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}


__all__ = ["Outcome", "Runner", "Stopped", "run_plan"]
