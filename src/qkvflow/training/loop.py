"""The loop of one run: program calls, evaluations, checkpoints, and what is written of them.

Everything here is bookkeeping on the host. What a step computes is in `step`; whatever is cut off
at any moment, resuming from the last checkpoint writes the same lines again.
"""

import dataclasses
import math
import signal
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

from qkvflow.data import EncodedCorpus
from qkvflow.distributed import hosts
from qkvflow.distributed.memory import check_fits
from qkvflow.errors import UserError
from qkvflow.evaluation import Evaluation, Evaluator
from qkvflow.evaluation.losses import evaluation_batch
from qkvflow.generation.text import sample_text
from qkvflow.lm import LanguageModel
from qkvflow.runs.checkpoint import Checkpoints
from qkvflow.runs.config import RunConfig
from qkvflow.runs.rundir import (
    METRICS,
    SAMPLES,
    MetricsWriter,
    asked_to_stop,
    describe_growing,
    resume_command,
    writing,
)
from qkvflow.training.dispatch import Dispatch
from qkvflow.training.program import Program
from qkvflow.training.reporter import Reporter
from qkvflow.training.signals import signals
from qkvflow.training.step import TrainState
from qkvflow.training.trackers import Tracker


class Interrupted(Exception):
    """A signal asked the run to stop; it has been saved."""

    def __init__(self, signum: int, step: int, directory: Path) -> None:
        name = signal.Signals(signum).name
        super().__init__(
            f"{name} at step {step}: the run is saved; continue with '{resume_command(directory)}'"
        )
        self.signum = signum


class Diverged(Exception):
    """Too many updates in a row were not finite."""


@dataclasses.dataclass
class Progress:
    """What the host remembers; saved with every checkpoint."""

    step: int = 0
    seconds: float = 0.0
    compile_seconds: float = 0.0
    pending: list[float] = dataclasses.field(default_factory=list)
    """Losses since the last line of training loss."""
    best_loss: float | None = None
    best_step: int | None = None
    skipped: int = 0
    skipped_in_row: int = 0
    solved: int = 0
    """Steps whose batch went through a solver."""
    missed: int = 0
    """Those that it did not arrive with."""
    evaluations: float = 0.0
    """Of a whole block, of all these steps together."""
    residual: float = 0.0
    """The largest."""
    samples_bytes: int = 0
    done: bool = False
    started: str | None = None
    written: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Sizes and hashes of the files that grow, for a resumed run to find them altered."""
    altered: list[str] = dataclasses.field(default_factory=list)
    """A line for each that was; the record says so."""


@dataclasses.dataclass
class Loop:
    """One run in one directory."""

    program: Program
    directory: Path
    encoded: EncodedCorpus
    checkpoints: Checkpoints
    fingerprint: dict[str, Any]
    reporter: Reporter
    tracker: Tracker
    program_bytes: int | None = None

    def __post_init__(self) -> None:
        self._metrics: MetricsWriter | None = None
        self.whole_validation: tuple[int, Evaluation] | None = None
        """The step and loss of the best evaluation on the whole split that this process made."""
        self._validation = self.evaluator("validation", self.config.train.eval_tokens)

    @property
    def config(self) -> RunConfig:
        return self.program.config

    def evaluator(self, split: str, max_tokens: int | None = None) -> Evaluator:
        """Of this run's model on one of its splits."""
        vocab_size, layout = self.program.vocab_size, self.program.layout
        return Evaluator(
            self.program.static,
            getattr(self.encoded, split),
            context=self.config.context,
            batch_size=evaluation_batch(self.config.context, vocab_size, layout.shape.rows),
            max_tokens=max_tokens,
            layout=layout,
        )

    def run(self, state: TrainState, progress: Progress) -> TrainState:
        """Train from `state` to the end of the budget; returns the last state."""
        if progress.done:
            return state
        with signals() as caught:
            dispatch = Dispatch(self.program, self.encoded.train, progress.step)
            signum = 0
            try:
                if hosts.is_rank0():
                    with writing(self.directory):
                        self._metrics = MetricsWriter(self.directory / METRICS)
                self.reporter.compiling()
                begin = time.perf_counter()
                self.program_bytes = dispatch.compile(state)
                check_fits(
                    self.program_bytes,
                    "a step",
                    "use a smaller train.batch_size or model.context, train.grad_accum or "
                    "model.remat",
                )
                progress.compile_seconds += time.perf_counter() - begin
                while not progress.done and not signum:
                    # Processes stop together, and make as many steps as the first one means to.
                    said = hosts.all_gather([self._stop(caught), dispatch.size])
                    signum, dispatch.size = int(said[:, 0].max()), int(said[0, 1])
                    if not signum:
                        state = self._advance(state, progress, dispatch)
                        self._pause(state, progress)
                if signum:
                    if progress.step:
                        self.save(state, progress)
                    self.checkpoints.wait()
                    raise Interrupted(signum, progress.step, self.directory)
            finally:
                if self._metrics is not None:
                    self._metrics.close()
                dispatch.close()
        return state

    def _stop(self, caught: list[int]) -> int:
        """The signal to stop by, or 0; one who asks in the directory is as good as a signal."""
        if not caught and hosts.is_rank0() and asked_to_stop(self.directory):
            return int(signal.SIGTERM)
        return caught[0] if caught else 0

    def _advance(self, state: TrainState, progress: Progress, dispatch: Dispatch) -> TrainState:
        """One program call, up to the next thing that has to happen between steps."""
        train = self.config.train
        periods = (train.eval_every, self.config.checkpoint.every)
        until = min(train.steps, *(progress.step - progress.step % n + n for n in periods))
        count = min(dispatch.size, until - progress.step)
        begin = time.perf_counter()
        state, metrics = dispatch(state, count)
        spent = time.perf_counter() - begin
        dispatch.learn(spent / count)
        with writing(self.directory):
            self._take(metrics, count, spent, progress)
        return state

    def _take(self, metrics: Any, count: int, spent: float, progress: Progress) -> None:
        train, per_step = self.config.train, self.config.tokens_per_step
        for index in range(count):
            progress.step += 1
            progress.seconds += spent / count
            progress.pending.append(float(metrics.loss[index]))
            bad = not metrics.finite[index]
            progress.skipped += bad
            progress.skipped_in_row = progress.skipped_in_row + 1 if bad else 0
            if metrics.work is not None:
                progress.solved += 1
                progress.missed += not metrics.work.arrived[index]
                progress.evaluations += float(metrics.work.evaluations[index])
                progress.residual = max(progress.residual, float(metrics.work.residual[index]))
            if progress.step % train.log_every == 0 or progress.step == train.steps:
                line = {
                    "kind": "train",
                    "step": progress.step,
                    "tokens": progress.step * per_step,
                    "loss": _mean(progress.pending),
                    "lr": float(metrics.lr[index]),
                    "grad_norm": float(metrics.grad_norm[index]),
                    "seconds": round(progress.seconds, 4),
                }
                if progress.solved:
                    line["evaluations"] = progress.evaluations / progress.solved
                    line["missed"] = progress.missed
                progress.pending.clear()
                self._write(line)
                self.reporter.train(line)
            if progress.skipped_in_row >= train.max_skipped:
                raise Diverged(
                    f"the loss or its gradient was not finite {train.max_skipped} times in a row "
                    f"up to step {progress.step}; lower optim.lr or raise optim.warmup and start "
                    f"again (checkpoints kept: {self._kept()})"
                )
        last = float(metrics.loss[count - 1])
        left = (train.steps - progress.step) * progress.seconds / max(progress.step, 1)
        speed = per_step * count / max(spent, 1e-9)
        self.reporter.progress(progress.step, loss=last, tokens_per_second=speed, left=left)

    def _kept(self) -> str:
        return ", ".join(f"step {step}" for step in self.checkpoints.steps()) or "none yet"

    def _pause(self, state: TrainState, progress: Progress) -> None:
        """What happens between program calls: evaluation, samples, checkpoints."""
        train, step = self.config.train, progress.step
        over = step >= train.steps
        improved = False
        if step % train.eval_every == 0 or over:
            params = self.program.evaluation_params(state)
            evaluation = self._validation(params)
            if train.eval_tokens is None and self._improves(evaluation, progress):
                self.whole_validation = step, evaluation
            self._tell_missed(evaluation, progress)
            with writing(self.directory):
                improved = self._note(evaluation, progress)
                if train.samples == "evaluations":
                    self.sample(params, progress)
            if train.target_loss is not None and evaluation.nats <= train.target_loss:
                self.reporter.note(f"target loss {train.target_loss} reached")
                over = True
        progress.done = over
        keep = improved and self.config.checkpoint.best
        if over or keep or step % self.config.checkpoint.every == 0:
            self.save(state, progress)

    def reached(self, progress: Progress) -> bool:
        """Whether a run is at its end: all steps are made, or its target loss was seen."""
        train, best = self.config.train, progress.best_loss
        found = train.target_loss is not None and best is not None and best <= train.target_loss
        return found or progress.step >= train.steps

    def _tell_missed(self, evaluation: Evaluation, progress: Progress) -> None:
        """Say when a solver gave up: such losses are not those of what it solves."""
        scheme, validation = self.program.static.scheme, evaluation.solved
        if validation is None or not validation.missed + progress.missed:
            return
        self.reporter.note(
            f"{scheme.gave_up()} (so it was in {progress.missed} of {progress.solved} training "
            f"steps and in {validation.missed} of {validation.batches} batches of validation)"
        )

    def save(self, state: TrainState, progress: Progress) -> None:
        """Begin to save, unless this very step is saved already."""
        if progress.step in self.checkpoints.steps():
            return
        if self._metrics is not None:
            with writing(self.directory):
                self._metrics.sync()
                progress.written = describe_growing(self.directory)
        best = progress.best_step if self.config.checkpoint.best else None
        host = {**self.fingerprint, "progress": dataclasses.asdict(progress)}
        self.checkpoints.save(*self.program.split_state(state), host, progress.step, best)

    def _note(self, evaluation: Evaluation, progress: Progress) -> bool:
        """Write an evaluation down; whether it is the best so far."""
        line = {
            "kind": "validation",
            "step": progress.step,
            "tokens": progress.step * self.config.tokens_per_step,
            "loss": evaluation.nats,
            "standard_error": evaluation.standard_error,
            "bits_per_byte": evaluation.bits_per_byte,
            "seconds": round(progress.seconds, 4),
        }
        self._write(line)
        self.reporter.validation(progress.step, evaluation)
        improved = self._improves(evaluation, progress)
        if improved:
            progress.best_loss, progress.best_step = evaluation.nats, progress.step
        return improved

    def _improves(self, evaluation: Evaluation, progress: Progress) -> bool:
        best = progress.best_loss
        return math.isfinite(evaluation.nats) and (best is None or evaluation.nats < best)

    def sample(self, params: Any, progress: Progress) -> None:
        """Text for a person to read, at the end of `samples.txt`."""
        gathered = self.program.layout.gathered(params)
        if not hosts.is_rank0():
            return
        text = self._sampled(eqx.combine(gathered, self.program.static))
        with (self.directory / SAMPLES).open("a", encoding="utf-8") as file:
            file.write(f"--- step {progress.step} ---\n{text}\n\n")
        progress.samples_bytes = (self.directory / SAMPLES).stat().st_size
        self.reporter.sample(progress.step, text)
        self.tracker.text("sample", text, progress.step)

    def _sampled(self, model: LanguageModel) -> str:
        tokenizer, seed = self.encoded.tokenizer, self.config.train.seed
        try:
            return sample_text(model, tokenizer, prompt=self._prompt(), seed=seed)
        except Exception as error:  # It is only a look: whatever goes wrong ends no run.
            return f"(no sample: {' '.join(str(error).split())[:200]})"

    def _prompt(self) -> str:
        """A line break or, where the alphabet has none, the text's first symbol."""
        tokenizer = self.encoded.tokenizer
        try:
            tokenizer.encode("\n")
        except UserError:
            return tokenizer.decode(self.encoded.train.tokens[:1])
        return "\n"

    def _write(self, line: dict[str, Any]) -> None:
        if self._metrics is not None:
            self._metrics.append(line)
            self.tracker.log(line)


def _mean(losses: list[float]) -> float | None:
    """Of the finite ones: the others had no effect either."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    return float(np.mean(finite)) if finite else None
