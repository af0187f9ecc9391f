"""Several runs of one model as one compiled program.

Runs differ in seed and peak learning rate alone; both are arguments of the program, with a leading
axis over runs (`vmap`), which is divided over devices where there are several. What one run
computes is `training.step`: a member of an ensemble agrees with the same run alone to rounding.
"""

import dataclasses
import os
import time
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from qkvflow.data import EncodedCorpus
from qkvflow.data.batches import fits_on_device
from qkvflow.errors import UserError
from qkvflow.evaluation.losses import (
    Evaluation,
    evaluation_batch,
    evaluation_groups,
    make_group_losses,
    summarise,
)
from qkvflow.lm import LanguageModel, build_config
from qkvflow.lm.assembly import abstract_model
from qkvflow.runs.config import RunConfig
from qkvflow.runs.record import program_bytes
from qkvflow.training.objective import make_objective
from qkvflow.training.optim import evaluation_params, optimiser
from qkvflow.training.schedule import make_schedule
from qkvflow.training.step import (
    Metrics,
    State,
    init_state,
    make_multi_step,
    model_key,
    split_model,
)

_MAX_DISPATCH = 128
_DISPATCH_SECONDS = 0.5
# Of the memory that is free: the rest is for evaluation, checkpoints and everybody else.
_SHARE = 0.6


class Ensemble:
    """`size` runs of one configuration at once."""

    def __init__(self, config: RunConfig, encoded: EncodedCorpus) -> None:
        self.config, self.encoded = config, encoded
        self.size = 0
        self.compile_seconds = 0.0
        self.program_bytes: int | None = None
        self.params, self.static = abstract_model(config, encoded.tokenizer.vocab_size)
        self._shape = make_schedule(dataclasses.replace(config.optim, lr=1.0), config.train.steps)
        # The state of an optimiser does not depend on its learning rate.
        self._optimiser = optimiser(config.optim, self._shape, config.train.trainable)
        self._most = min(config.train.steps_per_dispatch or _MAX_DISPATCH, config.train.steps)
        self._dispatch = self._most if config.train.steps_per_dispatch else 1
        tokens = encoded.train.tokens
        if not fits_on_device(len(tokens), tokens.dtype.itemsize):
            raise UserError(
                f"'{encoded.corpus.spec}' has {len(tokens):,} train tokens, too many to keep on "
                "the device; compare on a smaller corpus, or train models one by one"
            )
        self._losses: Any = None

    @property
    def model(self) -> LanguageModel:
        """The model's shapes."""
        return eqx.combine(self.params, self.static)

    # Training

    def compile(self, wanted: int, size: int | None = None) -> None:
        """Compile for `size` runs, or for as many of `wanted` as memory allows."""
        count = wanted if size is None else min(size, wanted)
        self._compile(count)
        if size is None and self.program_bytes is not None:
            free = available_bytes()
            if free is not None and self.program_bytes > _SHARE * free and count > 1:
                # Most of a program's memory grows with its runs.
                fits = max(1, int(count * _SHARE * free / self.program_bytes))
                groups = -(-wanted // fits)
                self._compile(-(-wanted // groups))
        tokens = jnp.asarray(np.asarray(self.encoded.train.tokens))
        self._tokens = jax.device_put(tokens, self._everywhere)

    def _compile(self, count: int) -> None:
        devices = jax.devices()
        used = min(len(devices), count)
        self.size = -(-count // used) * used
        mesh = Mesh(np.asarray(devices[:used]), ("run",))
        self._by_run = NamedSharding(mesh, PartitionSpec("run"))
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        begin = time.perf_counter()
        members = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self._by_run),
            (
                self.abstract_state(),
                jax.ShapeDtypeStruct((self.size,), jnp.int32),
                jax.ShapeDtypeStruct((self.size,), jnp.float32),
            ),
        )
        tokens = self.encoded.train.tokens
        shared = (
            jax.ShapeDtypeStruct(tokens.shape, tokens.dtype, sharding=self._everywhere),
            jax.ShapeDtypeStruct((), jnp.int32, sharding=self._everywhere),
        )
        program = jax.jit(
            jax.vmap(self._member, in_axes=(0, 0, 0, None, None)),
            donate_argnums=0,
            out_shardings=self._by_run,
        )
        self._program = program.lower(*members, *shared).compile()
        self.compile_seconds += time.perf_counter() - begin
        self.program_bytes = program_bytes(self._program)

    def _member(
        self,
        state: State,
        seed: Int[Array, ""],
        lr: Float[Array, ""],
        tokens: Array,
        count: Int[Array, ""],
    ) -> tuple[State, Metrics]:
        config = self.config
        train, shape = config.train, config.model.config

        def schedule(k: Any) -> Array:
            return lr * self._shape(k)

        chunk = make_multi_step(
            self.static,
            optimiser(config.optim, schedule, train.trainable),
            schedule,
            max_steps=self._most,
            batch_size=train.batch_size,
            context=config.context,
            grad_accum=train.grad_accum,
            dropout=shape.dropout > 0 or shape.attention_dropout > 0,
            objective=make_objective(train, shape.scheme),
        )
        return chunk(state, seed, tokens, count)

    def abstract_state(self) -> State:
        """Shapes of the state of all runs."""
        one = jax.eval_shape(lambda params: init_state(params, self._optimiser), self.params)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((self.size, *leaf.shape), leaf.dtype), one
        )

    def init(self, seeds: Sequence[int]) -> State:
        """The states before the first step: for each seed exactly that of the run alone."""
        vocab_size = self.encoded.tokenizer.vocab_size
        made = []
        for seed in seeds:
            model = build_config(
                self.config.model.config, vocab_size=vocab_size, key=model_key(seed)
            )
            made.append(jax.device_get(init_state(split_model(model)[0], self._optimiser)))
        return self.place(jax.tree.map(lambda *leaves: np.stack(leaves), *made))

    def place(self, state: State) -> State:
        """Host arrays onto the devices, as buffers of their own: the program takes them over."""
        return jax.tree.map(lambda leaf: jnp.copy(jax.device_put(leaf, self._by_run)), state)

    def next_count(self, until: int) -> int:
        """Steps of the next program call, which is to take about half a second."""
        return min(self._dispatch, until)

    def advance(
        self, state: State, seeds: Sequence[int], lrs: Sequence[float], count: int
    ) -> tuple[State, Metrics, float]:
        """`count` steps of every run; the state is used up. Metrics have a row for each run."""
        begin = time.perf_counter()
        state, metrics = self._program(
            state,
            jax.device_put(np.asarray(seeds, np.int32), self._by_run),
            jax.device_put(np.asarray(lrs, np.float32), self._by_run),
            self._tokens,
            jax.device_put(np.asarray(count, np.int32), self._everywhere),
        )
        metrics = jax.device_get(metrics)
        spent = time.perf_counter() - begin
        if self.config.train.steps_per_dispatch is None:
            size = int(_DISPATCH_SECONDS * count / max(spent, 1e-6))
            self._dispatch = max(1, min(size, self._most, 2 * self._dispatch))
        return state, metrics, spent

    # Evaluation

    def evaluation_params(self, state: State) -> Any:
        """The parameters to evaluate and keep, of all runs."""
        if self.config.optim.name != "schedule-free":
            return state.params
        return jax.vmap(lambda o, p: evaluation_params(self.config.optim, o, p))(
            state.opt_state, state.params
        )

    def evaluate(self, params: Any, split: str, max_tokens: int | None = None) -> list[Evaluation]:
        """The loss of every run on `validation` or `test`, from stacked parameters."""
        if not self._losses:
            self._prepare_evaluation()
        tokens = getattr(self.encoded, split)
        context = self.config.context
        batch = evaluation_batch(context, self.encoded.tokenizer.vocab_size)
        groups = evaluation_groups(len(tokens), context, batch, max_tokens)
        # Both splits lie in one array, so that one program serves both; a window never counts
        # a token beyond its own split.
        offset = 0 if split == "validation" else len(self.encoded.validation)
        placed = jax.device_put(params, self._by_run)
        losses = np.concatenate(
            [
                np.asarray(self._losses(placed, self._both, starts + offset, lengths, count))
                for starts, lengths, count in zip(*groups, strict=True)
            ],
            axis=1,
        )
        lengths = groups.lengths.reshape(-1)
        used = lengths > 0
        return [
            summarise(each.astype(np.float64).reshape(-1, context)[used], lengths[used], tokens)
            for each in losses
        ]

    def _prepare_evaluation(self) -> None:
        both = np.concatenate([self.encoded.validation.tokens, self.encoded.test.tokens])
        self._both = jax.device_put(jnp.asarray(both), self._everywhere)
        losses = make_group_losses(self.static, self.config.context)
        self._losses = jax.jit(jax.vmap(losses, in_axes=(0, None, None, None, None)))


def take_run(tree: Any, index: int) -> Any:
    """One run's part of stacked arrays, as arrays of its own on the host."""
    return jax.tree.map(lambda leaf: np.array(leaf[index]), tree)


def stack_runs(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def available_bytes() -> int | None:
    """Memory that is free now, on the device or, for a CPU, on the machine."""
    device = jax.devices()[0]
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"] - stats.get("bytes_in_use", 0)) * jax.device_count()
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None
