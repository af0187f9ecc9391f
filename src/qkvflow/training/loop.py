"""The loop of one run: program calls, evaluations, checkpoints, and what is written of them.

Everything here is bookkeeping on the host. What a step computes is in `step`; whatever is cut off
at any moment, resuming from the last checkpoint writes the same lines again.
"""

import dataclasses
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from qkvflow.data import EncodedCorpus, Tokenizer
from qkvflow.data.batches import BatchLoader, fits_on_device
from qkvflow.distributed import Layout, hosts
from qkvflow.evaluation.losses import Evaluation, Evaluator, evaluation_batch
from qkvflow.lm import LanguageModel
from qkvflow.runs.checkpoint import Checkpoints
from qkvflow.runs.config import RunConfig
from qkvflow.runs.record import program_bytes
from qkvflow.runs.rundir import METRICS, SAMPLES, Lines, writing
from qkvflow.training.objective import make_objective
from qkvflow.training.optim import evaluation_params, optimiser
from qkvflow.training.reporter import Reporter
from qkvflow.training.schedule import make_schedule
from qkvflow.training.step import State, init_state, make_host_multi_step, make_multi_step
from qkvflow.training.track import Tracker

Sample = Callable[[LanguageModel, Tokenizer, int], str]
"""Generated text for a person to read, from (model, tokenizer, seed)."""

_MAX_DISPATCH = 128
_MAX_HOST_DISPATCH = 8
_DISPATCH_SECONDS = 0.5


class Interrupted(Exception):
    """A signal asked the run to stop; it has been saved."""

    def __init__(self, signum: int, step: int, directory: Path) -> None:
        name = signal.Signals(signum).name
        super().__init__(
            f"{name} at step {step}: the run is saved; continue with 'qkvflow resume {directory}'"
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
    samples_bytes: int = 0
    done: bool = False
    label: str | None = None
    started: str | None = None


@dataclasses.dataclass
class Loop:
    """One run in one directory."""

    config: RunConfig
    directory: Path
    static: Any
    encoded: EncodedCorpus
    checkpoints: Checkpoints
    fingerprint: dict[str, Any]
    reporter: Reporter
    tracker: Tracker
    sample: Sample | None
    layout: Layout
    program_bytes: int | None = None

    def __post_init__(self) -> None:
        train, optim = self.config.train, self.config.optim
        self._schedule = make_schedule(optim, train.steps)
        self.optimiser = optimiser(optim, self._schedule, train.trainable)
        tokens = self.encoded.train.tokens
        # Several processes read their own rows of every batch.
        fits = fits_on_device(len(tokens), tokens.dtype.itemsize)
        self._on_device = fits and hosts.count() == 1
        self._validation = Evaluator(
            self.static,
            self.encoded.validation,
            context=self.config.context,
            batch_size=self.evaluation_batch,
            max_tokens=train.eval_tokens,
            layout=self.layout,
        )

    @property
    def evaluation_batch(self) -> int:
        vocab_size, parts = self.encoded.tokenizer.vocab_size, self.layout.shape.rows
        return evaluation_batch(self.config.context, vocab_size, parts)

    def run(self, state: State, progress: Progress) -> State:
        """Train from `state` to the end of the budget; returns the last state."""
        if progress.done:
            return state
        with signals() as caught:
            with writing(self.directory):
                self._lines = Lines(self.directory / METRICS) if hosts.is_rank0() else None
            dispatch = self._compile(state, progress)
            signum = 0
            try:
                while not progress.done and not signum:
                    # Processes stop together, and make as many steps as the first one means to.
                    said = hosts.all_gather([caught[0] if caught else 0, dispatch.size])
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
                if self._lines is not None:
                    self._lines.close()
                dispatch.close()
        return state

    def params(self, state: State) -> Any:
        """The parameters to evaluate."""
        return evaluation_params(self.config.optim, state.opt_state, state.params)

    def _compile(self, state: State, progress: Progress) -> "_Dispatch":
        dispatch = _Dispatch(self, progress.step)
        begin = time.perf_counter()
        dispatch.compile(state)
        progress.compile_seconds += time.perf_counter() - begin
        self.program_bytes = program_bytes(dispatch.compiled)
        return dispatch

    def _advance(self, state: State, progress: Progress, dispatch: "_Dispatch") -> State:
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

    def _pause(self, state: State, progress: Progress) -> None:
        """What happens between program calls: evaluation, samples, checkpoints."""
        train, step = self.config.train, progress.step
        over = step >= train.steps
        improved = False
        if step % train.eval_every == 0 or over:
            evaluation = self._validation(self.params(state))
            with writing(self.directory):
                improved = self._report(evaluation, state, progress)
            if train.target_loss is not None and evaluation.nats <= train.target_loss:
                self.reporter.note(f"target loss {train.target_loss} reached")
                over = True
        progress.done = over
        keep = improved and self.config.checkpoint.best
        if over or keep or step % self.config.checkpoint.every == 0:
            self.save(state, progress)

    def save(self, state: State, progress: Progress) -> None:
        """Begin to save, unless this very step is saved already."""
        if progress.step in self.checkpoints.steps():
            return
        if self._lines is not None:
            with writing(self.directory):
                self._lines.sync()
        best = progress.best_step if self.config.checkpoint.best else None
        host = {**self.fingerprint, "progress": dataclasses.asdict(progress)}
        self.checkpoints.save(state, host, progress.step, best)

    def _report(self, evaluation: Evaluation, state: State, progress: Progress) -> bool:
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
        if self.sample is not None:
            params = self.layout.gathered(self.params(state))
            if hosts.is_rank0():
                self._sample(self.sample, eqx.combine(params, self.static), progress)
        best = progress.best_loss
        improved = math.isfinite(evaluation.nats) and (best is None or evaluation.nats < best)
        if improved:
            progress.best_loss, progress.best_step = evaluation.nats, progress.step
        return improved

    def _sample(self, sample: Sample, model: LanguageModel, progress: Progress) -> None:
        text = sample(model, self.encoded.tokenizer, self.config.train.seed)
        with (self.directory / SAMPLES).open("a", encoding="utf-8") as file:
            file.write(f"--- step {progress.step} ---\n{text}\n\n")
        progress.samples_bytes = (self.directory / SAMPLES).stat().st_size
        self.reporter.sample(progress.step, text)
        self.tracker.text("sample", text, progress.step)

    def _write(self, line: dict[str, Any]) -> None:
        if self._lines is not None:
            self._lines.append(line)
            self.tracker.log(line)


def _mean(losses: list[float]) -> float | None:
    """Of the finite ones: the others had no effect either."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    return float(np.mean(finite)) if finite else None


def abstract_state(config: RunConfig, params: Any) -> State:
    """The shapes of a run's state."""
    schedule = make_schedule(config.optim, config.train.steps)
    chosen = optimiser(config.optim, schedule, config.train.trainable)
    return jax.eval_shape(lambda params: init_state(params, chosen), params)


class _Dispatch:
    """Calls the compiled program, with as many steps at once as take about half a second."""

    def __init__(self, loop: Loop, first_step: int) -> None:
        config = loop.config
        train, shape = config.train, config.model.config
        self._wanted = train.steps_per_dispatch
        limit = _MAX_DISPATCH if loop._on_device else _MAX_HOST_DISPATCH
        self._most = min(self._wanted or limit, train.steps)
        self.size = self._most if self._wanted else 1
        self._layout = loop.layout
        self._seed = self._layout.replicate(np.int32(train.seed))
        options: dict[str, Any] = {
            "max_steps": self._most,
            "batch_size": train.batch_size,
            "grad_accum": train.grad_accum,
            "dropout": shape.dropout > 0 or shape.attention_dropout > 0,
            "objective": make_objective(train, shape.scheme),
            "constrain": self._layout.shard_batch,
            "arrange": self._layout.shard_model,
        }
        tokens = loop.encoded.train.tokens
        self._loader: BatchLoader | None = None
        if loop._on_device:
            chunk = make_multi_step(
                loop.static, loop.optimiser, loop._schedule, context=config.context, **options
            )
            self._tokens = self._layout.replicate(tokens)
        else:
            chunk = make_host_multi_step(loop.static, loop.optimiser, loop._schedule, **options)
            self._loader = BatchLoader(
                tokens,
                seed=train.seed,
                batch_size=train.batch_size,
                context=config.context,
                first_step=first_step,
                rows=self._layout.own_rows(train.batch_size),
                prefetch=2 * self._most,
            )
        self._batch_size, self._context = train.batch_size, config.context
        self._chunk = chunk

    def compile(self, state: State) -> None:
        program = jax.jit(
            self._chunk,
            donate_argnums=0,
            out_shardings=(self._layout.shardings(state), self._layout.replicated),
        )
        self.compiled = program.lower(state, self._seed, *self._data(0)).compile()

    def __call__(self, state: State, count: int) -> tuple[State, Any]:
        state, metrics = self.compiled(state, self._seed, *self._data(count))
        return state, jax.device_get(metrics)

    def _data(self, count: int) -> tuple[Any, Array]:
        """The tokens, or the next `count` batches of them; and `count`."""
        number = self._layout.replicate(np.int32(count))
        if self._loader is None:
            return self._tokens, number
        rows = self._layout.own_rows(self._batch_size)
        shape = (self._most, rows.stop - rows.start, self._context)
        both = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        for index in range(count):
            both[0][index], both[1][index] = next(self._loader)
        return tuple(self._layout.assemble(each, self._batch_size) for each in both), number

    def learn(self, seconds_per_step: float) -> None:
        if self._wanted is None:
            size = int(_DISPATCH_SECONDS / max(seconds_per_step, 1e-6))
            self.size = max(1, min(size, self._most, 2 * self.size))

    def close(self) -> None:
        if self._loader is not None:
            self._loader.close()


@contextmanager
def signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM are noted, for the loop to act on between program calls; a second one
    of either does what it always did."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def note(signum: int, _: Any) -> None:
        caught.append(signum)
        signal.signal(signum, before[signum])

    wanted = (signal.SIGINT, signal.SIGTERM)
    before: dict[int, Any] = {each: signal.signal(each, note) for each in wanted}
    try:
        yield caught
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
