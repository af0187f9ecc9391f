"""The training step: pure functions of (state, hyper, data), many steps in one program call.

`make_multi_step` gives `multi_step(state, hyper, data, count)`: `count` optimiser steps.
Seed, learning rate, warm-up and the steps of the run are arguments of the compiled program and not
parts of it, and so is `count`: runs that differ in these alone share one program, and cutting the
same steps into other calls gives the same bits.

Outside this file: `jit` with the state donated, and a mesh. Nothing here knows the host, files, or
which architecture it trains.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Integer

from qkvflow.data.batches import gather_windows, window_starts
from qkvflow.lm import LanguageModel, Work, loss, token_losses_and_work
from qkvflow.schemes import AbstractSolver

_MODEL_KEY = 0x6D6F64
_DROPOUT_KEY = 0x64726F
_DEPTH_KEY = 0x646570

Seed = int | Integer[Array, ""]


class TrainState(NamedTuple):
    """Everything that changes in training."""

    params: Any
    """The model's arrays (float32 master weights)."""
    opt_state: Any
    step: Int[Array, ""]
    """Steps taken, skipped ones included: the batch to come is that of (seed, step)."""
    skipped: Int[Array, ""]
    """Updates left out because the loss or the gradient was not finite."""
    skipped_in_row: Int[Array, ""]


class Metrics(NamedTuple):
    """One entry per step; entries from `count` on are not steps."""

    loss: Float[Array, " chunk"]
    grad_norm: Float[Array, " chunk"]
    """Before clipping."""
    lr: Float[Array, " chunk"]
    finite: Bool[Array, " chunk"]
    work: Work | None = None
    """Where a solver traverses depth."""


class Hyper(NamedTuple):
    """What runs of one program may differ in."""

    seed: Any
    """Of batches, dropout and depth grids."""
    lr: Any
    """Peak learning rate."""
    warmup: Any
    steps: Any
    """Of the whole run, which the schedule follows."""
    teacher: Any = None
    """Arrays of the model whose predictions are learnt, if there is one."""


MultiStep = Callable[..., tuple[TrainState, Metrics]]
Objective = Callable[..., tuple[Array, Any]]
"""`objective(model, inputs, targets, key=..., depth_key=..., done=...)`: what to minimise, and of
it the cross-entropy, which is what is reported; with a solver, the cross-entropy and its work.
`done` is the share of the run that ends with this step. See `training.objective`."""
Batch = tuple[Int[Array, "batch seq"], Int[Array, "batch seq"]]
MakeOptimiser = Callable[[Hyper], optax.GradientTransformationExtraArgs]
Schedule = Callable[[Hyper, Any], Float[Array, ""]]
"""The learning rate of update k."""


def model_key(seed: Seed) -> Any:
    """The key of the initial weights."""
    return jax.random.fold_in(jax.random.key(seed), _MODEL_KEY)


def dropout_key(seed: Seed, step: Int[Array, ""]) -> Any:
    """The key of one step's dropout."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _DROPOUT_KEY), step)


def depth_key(seed: Seed, step: Int[Array, ""]) -> Any:
    """The key of one step's random depth grid."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _DEPTH_KEY), step)


def plain(
    model: LanguageModel,
    inputs: Array,
    targets: Array,
    *,
    key: Any,
    depth_key: Any,
    done: Any = 1.0,
) -> tuple[Array, Any]:
    """Cross-entropy on the model's own grid."""
    if isinstance(model.scheme.unwrapped, AbstractSolver):
        losses, work = token_losses_and_work(model, inputs, targets, key=key)
        value = jnp.mean(losses)
        return value, (value, work)
    value = loss(model, inputs, targets, key=key)
    return value, value


def split_model(model: LanguageModel) -> tuple[Any, Any]:
    """The arrays to train, and the rest of the model."""
    return eqx.partition(model, eqx.is_inexact_array)


def init_state(params: Any, optimiser: optax.GradientTransformation) -> TrainState:
    """The state before the first step. Buffers of its own, so that it can be donated."""
    zeros = [jnp.zeros((), jnp.int32) for _ in range(3)]
    return jax.tree.map(jnp.copy, TrainState(params, optimiser.init(params), *zeros))


def make_multi_step(
    static: Any,
    make_optimiser: MakeOptimiser,
    schedule: Schedule,
    *,
    max_steps: int,
    batch_size: int,
    context: int | None,
    grad_accum: int = 1,
    dropout: bool = False,
    shard_batch: Callable[[Array], Array] = lambda windows: windows,
    shard_model: Callable[[LanguageModel], LanguageModel] = lambda model: model,
    objective: Objective = plain,
    teacher: Any = None,
) -> MultiStep:
    """`multi_step(state, hyper, data, count)`: `count <= max_steps` steps.

    With a `context`, `data` are the tokens of the train split and windows are gathered on the
    device. Without, they are batches from the host, `max_steps batch seq` each, for corpora that
    do not fit on the device. `static` is the second half of `split_model`. `dropout` says whether
    the model wants keys. `shard_batch` is applied to the windows of a (micro-)batch and
    `shard_model` to the model, to divide them over devices (see `qkvflow.distributed`). `teacher`
    is that half of a model whose arrays are in `hyper`, for objectives that take one.
    """
    gradient = _gradient(
        static, batch_size, grad_accum, dropout, shard_batch, shard_model, objective, teacher
    )

    def multi_step(
        state: TrainState, hyper: Hyper, data: Any, count: Int[Array, ""]
    ) -> tuple[TrainState, Metrics]:
        def gathered(state: TrainState, _: Any) -> Batch:
            assert context is not None
            starts = window_starts(hyper.seed, state.step, batch_size, data.shape[0], context)
            return gather_windows(data, starts, context)

        def handed_over(_: TrainState, index: Any) -> Batch:
            inputs, targets = (
                jax.lax.dynamic_index_in_dim(each, index, keepdims=False) for each in data
            )
            return inputs, targets

        batch = handed_over if context is None else gathered
        optimiser = make_optimiser(hyper)
        return _run(
            state,
            hyper,
            count,
            batch,
            max_steps,
            gradient,
            optimiser,
            partial(schedule, hyper),
            isinstance(static.scheme, AbstractSolver),
        )

    return multi_step


def _gradient(
    static: Any,
    batch_size: int,
    grad_accum: int,
    dropout: bool,
    shard_batch: Callable[[Array], Array],
    shard_model: Callable[[LanguageModel], LanguageModel],
    objective: Objective,
    teacher: Any,
) -> Callable[..., tuple[Array, Any, Work | None]]:
    """Cross-entropy of a batch, gradient of the objective, in `grad_accum` parts, and the work of
    a solver."""
    solves = isinstance(static.scheme, AbstractSolver)

    def part(
        params: Any, inputs: Array, targets: Array, key: Any, depth: Any, done: Any, taught: Any
    ) -> tuple[Array, Any, Work | None]:
        more = {}
        if teacher is not None:
            more["teacher"] = shard_model(eqx.combine(taught, teacher))

        def value(params: Any) -> tuple[Array, Any]:
            model = shard_model(eqx.combine(params, static))
            batch = shard_batch(inputs), shard_batch(targets)
            return objective(model, *batch, key=key, depth_key=depth, done=done, **more)

        # One value and not two equal ones: programs that differ elsewhere then still agree to the
        # last bit.
        if objective is plain and not solves:
            return *jax.value_and_grad(lambda params: value(params)[0])(params), None
        (_, reported), gradient = jax.value_and_grad(value, has_aux=True)(params)
        entropy, work = reported if solves else (reported, None)
        return entropy, gradient, work

    def whole(
        params: Any, batch: Batch, hyper: Hyper, step: Array
    ) -> tuple[Array, Any, Work | None]:
        seed, done = hyper.seed, (step + 1) / hyper.steps
        key = dropout_key(seed, step) if dropout else None
        # All parts of a batch take the same grid: a batch is one step, however it is computed.
        depth = depth_key(seed, step)
        if grad_accum == 1:
            return part(params, *batch, key, depth, done, hyper.teacher)
        split = [x.reshape(grad_accum, batch_size // grad_accum, -1) for x in batch]
        keys = jnp.arange(grad_accum)

        def add(total: Any, each: Any) -> tuple[Any, Work | None]:
            inputs, targets, index = each
            inner = None if key is None else jax.random.fold_in(key, index)
            *made, work = part(params, inputs, targets, inner, depth, done, hyper.teacher)
            return jax.tree.map(lambda a, b: a + b / grad_accum, total, tuple(made)), work

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        total, works = jax.lax.scan(add, zero, (*split, keys))
        if works is None:
            return *total, None
        # Evaluations of a token, so the mean of the parts; it arrived where all parts did.
        evaluations, arrived = jnp.mean(works.evaluations), jnp.all(works.arrived)
        return *total, Work(evaluations, arrived, jnp.max(works.residual))

    return whole


def _run(
    state: TrainState,
    hyper: Hyper,
    count: Int[Array, ""],
    batch: Callable[[TrainState, Any], Batch],
    max_steps: int,
    gradient: Callable[..., tuple[Array, Any, Work | None]],
    optimiser: optax.GradientTransformationExtraArgs,
    schedule: Callable[[Any], Array],
    solves: bool,
) -> tuple[TrainState, Metrics]:
    def body(index: Any, carry: tuple[TrainState, Metrics]) -> tuple[TrainState, Metrics]:
        state, metrics = carry
        value, grads, work = gradient(state.params, batch(state, index), hyper, state.step)
        norm = optax.tree.norm(grads)
        finite = jnp.isfinite(value) & jnp.isfinite(norm)
        bad = (~finite).astype(jnp.int32)

        def update(params: Any, opt_state: Any) -> tuple[Any, Any]:
            updates, opt_state = optimiser.update(grads, opt_state, params, norm=norm)
            return optax.apply_updates(params, updates), opt_state

        # A branch and not a choice between arrays: parameters and moments are updated in place.
        params, opt_state = jax.lax.cond(
            finite, update, lambda *kept: kept, state.params, state.opt_state
        )
        lr = schedule(state.step - state.skipped)
        made = Metrics(value, norm, lr, finite, work)
        metrics = jax.tree.map(lambda all, one: all.at[index].set(one), metrics, made)
        after = TrainState(
            params,
            opt_state,
            state.step + 1,
            state.skipped + bad,
            bad * (state.skipped_in_row + 1),
        )
        return after, metrics

    empty = jnp.zeros(max_steps)
    no = jnp.zeros(max_steps, bool)
    metrics = Metrics(empty, empty, empty, no, Work(empty, no, empty) if solves else None)
    return jax.lax.fori_loop(0, count, body, (state, metrics))
