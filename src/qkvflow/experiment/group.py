"""Training a group of runs: lines, evaluations, selection and snapshots, for all runs at once.

Whatever is cut off at any moment, going on from the last snapshot writes the same lines again.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkvflow.experiment.ensemble import Ensemble, stack_runs, take_run
from qkvflow.experiment.snapshot import read_arrays, read_host, save_snapshot
from qkvflow.files import to_json
from qkvflow.training import rundir
from qkvflow.training.evaluate import Evaluation
from qkvflow.training.loop import Progress
from qkvflow.training.record import now
from qkvflow.training.step import State


class Stopped(Exception):
    """A signal asked to stop; everything is saved."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"signal {signum}")
        self.signum = signum


@dataclasses.dataclass
class Member:
    """One run of a group."""

    seed: int
    lr: float
    directory: Path
    progress: Progress = dataclasses.field(default_factory=Progress)
    error: str | None = None
    """Why it failed; nothing of it is written after that."""
    best: Any = None
    """The selected parameters, on the host."""
    validation: Evaluation | None = None
    """Of the selected parameters, if it was made by this process."""

    def write(self, line: dict[str, Any]) -> None:
        with (
            rundir.writing(self.directory),
            (self.directory / rundir.METRICS).open("a", encoding="utf-8") as file,
        ):
            file.write(to_json(line) + "\n")


@dataclasses.dataclass
class Hooks:
    """What a group tells and asks of the one who runs it."""

    begun: Callable[[int, int], None]
    """(step, runs): training begins, or goes on from a step."""
    advanced: Callable[[int, int, float], None]
    """(steps, runs, mean loss) after every program call."""
    stopping: Callable[[], int | None]
    """The signal that asked to stop, or None."""


@dataclasses.dataclass
class Group:
    """Runs that train together. Fewer than the program's size are filled up with copies of the
    first, which nobody looks at."""

    ensemble: Ensemble
    members: Sequence[Member]
    snapshot: Path
    hooks: Hooks

    def __post_init__(self) -> None:
        self._filled = [*self.members] + [self.members[0]] * (
            self.ensemble.size - len(self.members)
        )
        self.step = 0

    def run(self) -> None:
        """Train every member to the end; selected parameters are in `member.best` then."""
        state = self._begin()
        self.hooks.begun(self.step, len(self.members))
        config = self.ensemble.config
        train = config.train
        seeds = [member.seed for member in self._filled]
        lrs = [member.lr for member in self._filled]
        while self.step < train.steps and any(m.error is None for m in self.members):
            periods = (train.eval_every, config.checkpoint.every)
            until = min(train.steps, *(self.step - self.step % n + n for n in periods))
            count = self.ensemble.next_count(until - self.step)
            state, metrics, spent = self.ensemble.advance(state, seeds, lrs, count)
            for index, member in enumerate(self.members):
                if member.error is None:
                    row = [np.asarray(each)[index] for each in metrics]
                    self._take(member, row, count, spent / len(self.members))
            self.step += count
            over = self.step >= train.steps
            losses = np.asarray(metrics.loss)[: len(self.members), count - 1]
            self.hooks.advanced(count, len(self.members), float(np.mean(losses)))
            if self.step % train.eval_every == 0 or over:
                self._evaluate(state)
            signum = self.hooks.stopping()
            if over or signum is not None or self.step % config.checkpoint.every == 0:
                self._save(state)
            if signum is not None:
                raise Stopped(signum)

    def _begin(self) -> State:
        """From the snapshot, or from the seeds."""
        host = read_host(self.snapshot)
        if host is not None and self._fits(host):
            try:
                return self._restore(host)
            except Exception:  # Damaged or of another version: starting again is always sound.
                self.step = 0
        for member in self.members:
            if (member.directory / rundir.RECORD).exists():
                member.error = "it has its record already"
                continue
            with rundir.writing(member.directory):
                rundir.cut_back(member.directory, 0, 0)
            member.progress = Progress(started=now())
        return self.ensemble.init([member.seed for member in self._filled])

    def _fits(self, host: dict[str, Any]) -> bool:
        saved = [(each["seed"], each["lr"]) for each in host["members"]]
        mine = [(member.seed, member.lr) for member in self.members]
        return saved == mine and host["size"] == self.ensemble.size

    def _restore(self, host: dict[str, Any]) -> State:
        like: dict[str, Any] = {"state": self.ensemble.abstract_state()}
        for index, saved in enumerate(host["members"]):
            if saved["has_best"]:
                like[f"best{index}"] = self.ensemble.params
        arrays = read_arrays(self.snapshot, like)
        self.step = host["step"]
        for index, (member, saved) in enumerate(zip(self.members, host["members"], strict=True)):
            member.progress = Progress(**saved["progress"])
            member.error = saved["error"]
            member.best = arrays.get(f"best{index}")
            if not (member.directory / rundir.RECORD).exists():
                with rundir.writing(member.directory):
                    rundir.cut_back(
                        member.directory, member.progress.step, member.progress.samples_bytes
                    )
        return self.ensemble.place(arrays["state"])

    def _save(self, state: State) -> None:
        arrays: dict[str, Any] = {"state": state}
        for index, member in enumerate(self.members):
            if member.best is not None:
                arrays[f"best{index}"] = member.best
        host = {
            "step": self.step,
            "size": self.ensemble.size,
            "members": [
                {
                    "seed": member.seed,
                    "lr": member.lr,
                    "error": member.error,
                    "has_best": member.best is not None,
                    "progress": dataclasses.asdict(member.progress),
                }
                for member in self.members
            ],
        }
        save_snapshot(self.snapshot, arrays, host)

    def _take(self, member: Member, row: list[Any], count: int, spent: float) -> None:
        loss, grad_norm, lr, finite = row
        config, progress = self.ensemble.config, member.progress
        for index in range(count):
            progress.step += 1
            progress.seconds += spent / count
            progress.pending.append(float(loss[index]))
            bad = not finite[index]
            progress.skipped += bad
            progress.skipped_in_row = progress.skipped_in_row + 1 if bad else 0
            if progress.step % config.train.log_every == 0 or progress.step == config.train.steps:
                member.write(
                    {
                        "kind": "train",
                        "step": progress.step,
                        "tokens": progress.step * config.tokens_per_step,
                        "loss": float(np.mean(progress.pending)),
                        "lr": float(lr[index]),
                        "grad_norm": float(grad_norm[index]),
                        "seconds": round(progress.seconds, 4),
                    }
                )
                progress.pending.clear()
            if progress.skipped_in_row >= config.train.max_skipped:
                member.error = (
                    f"the loss or its gradient was not finite {config.train.max_skipped} times in "
                    f"a row up to step {progress.step}"
                )
                return

    def _evaluate(self, state: State) -> None:
        config = self.ensemble.config
        params = self.ensemble.evaluation_params(state)
        found = self.ensemble.evaluate(params, "validation", config.train.eval_tokens)
        for index, member in enumerate(self.members):
            if member.error is not None:
                continue
            evaluation, progress = found[index], member.progress
            member.write(
                {
                    "kind": "validation",
                    "step": progress.step,
                    "tokens": progress.step * config.tokens_per_step,
                    "loss": evaluation.nats,
                    "standard_error": evaluation.standard_error,
                    "bits_per_byte": evaluation.bits_per_byte,
                    "seconds": round(progress.seconds, 4),
                }
            )
            best, finite = progress.best_loss, math.isfinite(evaluation.nats)
            last = self.step >= config.train.steps
            if finite and (best is None or evaluation.nats < best or not config.checkpoint.best):
                progress.best_loss, progress.best_step = evaluation.nats, progress.step
                member.best, member.validation = take_run(params, index), evaluation
            if last and member.best is None:
                member.error = "the validation loss was never finite"

    def final_losses(self) -> None:
        """Whole-split validation loss at the selected parameters, where it is not known yet."""
        ready = [m for m in self.members if m.error is None]
        if self.ensemble.config.train.eval_tokens is None and all(m.validation for m in ready):
            return
        for member, evaluation in zip(self.members, self.evaluate_best("validation"), strict=True):
            member.validation = evaluation

    def evaluate_best(self, split: str) -> list[Evaluation | None]:
        """The loss of every member at its selected parameters; None for failed members."""
        anyone = next(member.best for member in self.members if member.best is not None)
        params = stack_runs([m.best if m.best is not None else anyone for m in self._filled])
        found = self.ensemble.evaluate(params, split)
        return [
            evaluation if member.error is None else None
            for member, evaluation in zip(self.members, found, strict=False)
        ]
