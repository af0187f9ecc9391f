"""The training step: pure functions of (state, seed, tokens), many steps in one program call.

`make_chunk` gives `chunk(state, seed, tokens, count)`, which makes `count` optimiser steps. Windows
are gathered on the device from the step number, so nothing is handed over between steps. The number
of steps is an argument of the compiled program and not a part of it: there is one program, and
cutting the same steps into other chunks gives the same bits.

Outside this file: `jit` with the state donated, `vmap` over (state, seed) for all seeds of a model,
a mesh. Nothing here knows the host, files, or which architecture it trains.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Integer

from qkvflow.data.batches import gather_windows, window_starts
from qkvflow.lm import LanguageModel, loss

_MODEL_KEY = 0x6D6F64
_DROPOUT_KEY = 0x64726F
_DEPTH_KEY = 0x646570

Seed = int | Integer[Array, ""]


class State(NamedTuple):
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


Chunk = Callable[..., tuple[State, Metrics]]
Objective = Callable[..., tuple[Array, Array]]
"""`objective(model, inputs, targets, key=..., depth_key=...)`: what to minimise, and of it the
cross-entropy, which is what is reported. See `training.depth` for others than the plain one."""
Batch = tuple[Int[Array, "batch seq"], Int[Array, "batch seq"]]


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
    model: LanguageModel, inputs: Array, targets: Array, *, key: Any, depth_key: Any
) -> tuple[Array, Array]:
    """Cross-entropy on the model's own grid."""
    value = loss(model, inputs, targets, key=key)
    return value, value


def split_model(model: LanguageModel) -> tuple[Any, Any]:
    """The arrays to train, and the rest of the model."""
    return eqx.partition(model, eqx.is_inexact_array)


def init_state(params: Any, optimiser: optax.GradientTransformation) -> State:
    """The state before the first step. Buffers of its own, so that it can be donated."""
    zeros = [jnp.zeros((), jnp.int32) for _ in range(3)]
    return jax.tree.map(jnp.copy, State(params, optimiser.init(params), *zeros))


def make_chunk(
    static: Any,
    optimiser: optax.GradientTransformation,
    schedule: Callable[[Any], Array],
    *,
    max_steps: int,
    batch_size: int,
    context: int,
    grad_accum: int = 1,
    dropout: bool = False,
    constrain: Callable[[Array], Array] = lambda windows: windows,
    arrange: Callable[[LanguageModel], LanguageModel] = lambda model: model,
    objective: Objective = plain,
) -> Chunk:
    """`chunk(state, seed, tokens, count)`: `count <= max_steps` steps on windows of `tokens`.

    `static` is the second half of `split_model`. `dropout` says whether the model wants keys.
    `constrain` is applied to the windows of a (micro-)batch and `arrange` to the model, to divide
    them over devices (see `qkvflow.parallel`).
    """
    gradient = _gradient(static, batch_size, grad_accum, dropout, constrain, arrange, objective)

    def chunk(
        state: State, seed: Seed, tokens: Integer[Array, " tokens"], count: Int[Array, ""]
    ) -> tuple[State, Metrics]:
        def batch(state: State, _: Any) -> Batch:
            starts = window_starts(seed, state.step, batch_size, tokens.shape[0], context)
            return gather_windows(tokens, starts, context)

        return _run(state, seed, count, batch, max_steps, gradient, optimiser, schedule)

    return chunk


def make_host_chunk(
    static: Any,
    optimiser: optax.GradientTransformation,
    schedule: Callable[[Any], Array],
    *,
    max_steps: int,
    batch_size: int,
    grad_accum: int = 1,
    dropout: bool = False,
    constrain: Callable[[Array], Array] = lambda windows: windows,
    arrange: Callable[[LanguageModel], LanguageModel] = lambda model: model,
    objective: Objective = plain,
) -> Chunk:
    """`chunk(state, seed, (inputs, targets), count)`: the same steps on batches from the host,
    `max_steps batch seq` each, for corpora that do not fit on the device."""
    gradient = _gradient(static, batch_size, grad_accum, dropout, constrain, arrange, objective)

    def chunk(
        state: State, seed: Seed, batches: tuple[Array, Array], count: Int[Array, ""]
    ) -> tuple[State, Metrics]:
        def batch(_: State, index: Any) -> Batch:
            inputs, targets = (
                jax.lax.dynamic_index_in_dim(each, index, keepdims=False) for each in batches
            )
            return inputs, targets

        return _run(state, seed, count, batch, max_steps, gradient, optimiser, schedule)

    return chunk


def _gradient(
    static: Any,
    batch_size: int,
    grad_accum: int,
    dropout: bool,
    constrain: Callable[[Array], Array],
    arrange: Callable[[LanguageModel], LanguageModel],
    objective: Objective,
) -> Callable[..., tuple[Array, Any]]:
    """Cross-entropy of a batch and gradient of the objective, in `grad_accum` parts."""

    def part(params: Any, inputs: Array, targets: Array, key: Any, depth: Any) -> tuple[Array, Any]:
        def value(params: Any) -> tuple[Array, Array]:
            model = arrange(eqx.combine(params, static))
            batch = constrain(inputs), constrain(targets)
            return objective(model, *batch, key=key, depth_key=depth)

        # One value and not two equal ones: programs that differ elsewhere then still agree to the
        # last bit.
        if objective is plain:
            return jax.value_and_grad(lambda params: value(params)[0])(params)
        (_, entropy), gradient = jax.value_and_grad(value, has_aux=True)(params)
        return entropy, gradient

    def whole(params: Any, batch: Batch, seed: Seed, step: Array) -> tuple[Array, Any]:
        key = dropout_key(seed, step) if dropout else None
        # All parts of a batch take the same grid: a batch is one step, however it is computed.
        depth = depth_key(seed, step)
        if grad_accum == 1:
            return part(params, *batch, key, depth)
        split = [x.reshape(grad_accum, batch_size // grad_accum, -1) for x in batch]
        keys = jnp.arange(grad_accum)

        def add(total: Any, each: Any) -> tuple[Any, None]:
            inputs, targets, index = each
            inner = None if key is None else jax.random.fold_in(key, index)
            made = part(params, inputs, targets, inner, depth)
            return jax.tree.map(lambda a, b: a + b / grad_accum, total, made), None

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        return jax.lax.scan(add, zero, (*split, keys))[0]

    return whole


def _run(
    state: State,
    seed: Seed,
    count: Int[Array, ""],
    batch: Callable[[State, Any], Batch],
    max_steps: int,
    gradient: Callable[..., tuple[Array, Any]],
    optimiser: optax.GradientTransformation,
    schedule: Callable[[Any], Array],
) -> tuple[State, Metrics]:
    def body(index: Any, carry: tuple[State, Metrics]) -> tuple[State, Metrics]:
        state, metrics = carry
        value, grads = gradient(state.params, batch(state, index), seed, state.step)
        norm = optax.tree.norm(grads)
        finite = jnp.isfinite(value) & jnp.isfinite(norm)
        updates, opt_state = optimiser.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        bad = (~finite).astype(jnp.int32)
        params, opt_state = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old),
            (params, opt_state),
            (state.params, state.opt_state),
        )
        lr = schedule(state.step - state.skipped)
        made = Metrics(value, norm, lr, finite)
        metrics = jax.tree.map(lambda all, one: all.at[index].set(one), metrics, made)
        after = State(
            params,
            opt_state,
            state.step + 1,
            state.skipped + bad,
            bad * (state.skipped_in_row + 1),
        )
        return after, metrics

    empty = jnp.zeros(max_steps)
    metrics = Metrics(empty, empty, empty, jnp.zeros(max_steps, bool))
    return jax.lax.fori_loop(0, count, body, (state, metrics))
