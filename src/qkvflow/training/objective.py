"""Training that makes depth a dial: random grids, and predictions that agree with finer ones.

    offset       steps begin at 0, s dt, (s + 1) dt, ... with s uniform in [0, 1]: equally long but
                 for the first and the last (Tong et al.'s code), so weights are asked for at
                 every t
    4-8          the number of steps itself is drawn, uniformly, from a few
    shortcut     CE_N + w (CE_M + |h_N - h_M|^2 / D) with M < N steps whose lengths are a random way
                 of grouping the N, h what the head reads, and h_N held fixed (LoopFormer, Jeddi et
                 al. 2026, whose code draws the lengths one after another and not uniformly). The
                 fine grid has the data to hold on to, the coarse one has the fine one
    exits        for a model with an exit gate (LoopLM, arXiv 2510.25741): sum_i p_i CE_i - w H(p),
                 p the exit distribution over steps, H its entropy
    consistency  cross-entropy + w KL(p_N || p_2N): the predictions at N and at 2N steps are drawn
                 to each other. Both are differentiated: the coarse grid has the data to hold on
                 to, the fine one has only the coarse one

Or a teacher's predictions are learnt, at temperature T (forward KL, Hinton et al. 2015):

    (1 - w) cross-entropy + w T^2 KL(p_teacher || p)

A step's draw is a function of (seed, step), like its batch. All numbers of steps are branches of
one program (`lax.switch`): a step costs what its own number costs. One padded grid of the most
steps would compile once instead of once for each number, but every step would then cost the most;
the numbers are few, the steps are many.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from qkvflow.lm import LanguageModel, count_flops
from qkvflow.lm.loss import (
    exit_losses,
    token_losses,
    token_losses_and_divergences,
    token_losses_and_gaps,
    token_losses_and_shortcut,
)
from qkvflow.runs.depths import Jitter, parse_jitter
from qkvflow.runs.sections import DistillConfig, TrainConfig
from qkvflow.schemes import grouped_edges, shifted_edges
from qkvflow.training.recurrence import truncated, truncated_flops
from qkvflow.training.step import Objective, plain
from qkvflow.training.trainable import freeze

Branch = Callable[[Any, Any], tuple[Array, Array]]
"""The objective at one number of steps, of the model's arrays and what else is given."""


def make_objective(train: TrainConfig, *, exits: bool = False) -> Objective:
    """The objective of a configuration; the plain one where nothing is asked for. `exits` says
    that the model has an exit gate."""
    if train.backprop_steps is not None:
        return truncated(train, train.backprop_steps)
    jitter, weight = parse_jitter(train.depth_jitter), train.consistency
    if jitter == Jitter() and not weight and not exits:
        return plain if train.trainable == "all" else _frozen(train.trainable)

    def objective(
        model: LanguageModel,
        inputs: Array,
        targets: Array,
        *,
        key: Any,
        depth_key: Any,
        done: Any = 1.0,
    ) -> tuple[Array, Array]:
        key_number, key_offset = jax.random.split(depth_key)
        share = jax.random.uniform(key_offset)
        arrays, static = eqx.partition(model, eqx.is_inexact_array)

        def at(number: int) -> Branch:
            def value(arrays: Any, given: Any) -> tuple[Array, Array]:
                inputs, targets, key, share = given
                full = freeze(eqx.combine(arrays, static), train.trainable)
                changed = full.at_depth(number)
                if train.shortcut:
                    edges = grouped_edges(full.num_steps, number, key_offset)
                    return _with_shortcut(full, changed, inputs, targets, key, edges, train)
                edges = shifted_edges(number, share) if jitter.offset else None
                return _value(changed, inputs, targets, key, edges, train)

            return value

        numbers, given = jitter.numbers or (model.num_steps,), (inputs, targets, key, share)
        if len(numbers) == 1:
            return at(numbers[0])(arrays, given)
        index = jax.random.randint(key_number, (), 0, len(numbers))
        return _switch(index, [at(number) for number in numbers], arrays, given)

    return objective


def _switch(
    index: Int[Array, ""], branches: list[Branch], arrays: Any, given: Any
) -> tuple[Array, Array]:
    """`branches[index](arrays, given)`, differentiated inside the branch that is taken:
    differentiated from outside, every branch would have to fill in what the backward passes of all
    others keep. The second value has no gradient."""

    @jax.custom_vjp
    def drawn(arrays: Any, index: Any, given: Any) -> tuple[Array, Array]:
        return jax.lax.switch(index, branches, arrays, given)

    def forward(arrays: Any, index: Any, given: Any) -> tuple[tuple[Array, Array], Any]:
        inner = [jax.value_and_grad(branch, has_aux=True) for branch in branches]
        return jax.lax.switch(index, inner, arrays, given)

    def backward(gradient: Any, cotangents: tuple[Array, Array]) -> tuple[Any, None, None]:
        return jax.tree.map(lambda leaf: cotangents[0] * leaf, gradient), None, None

    drawn.defvjp(forward, backward)
    return drawn(arrays, index, given)


def _frozen(trainable: str) -> Objective:
    """The plain objective as a function of the trained arrays alone."""

    def frozen(model: LanguageModel, *batch: Array, **keys: Any) -> tuple[Array, Any]:
        return plain(freeze(model, trainable), *batch, **keys)

    return frozen


def _value(
    model: LanguageModel,
    inputs: Array,
    targets: Array,
    key: Any,
    edges: Float[Array, " edges"] | None,
    train: TrainConfig,
) -> tuple[Array, Array]:
    if model.exit_gate is not None:
        expected, spread, last = exit_losses(model, inputs, targets, key=key, edges=edges)
        return jnp.mean(expected - train.exit_entropy * spread), jnp.mean(last)
    if not train.consistency:
        entropy = jnp.mean(token_losses(model, inputs, targets, key=key, edges=edges))
        return entropy, entropy
    finer = model.at_depth(2 * model.num_steps)
    entropies, gaps = token_losses_and_gaps(model, finer, inputs, targets, key=key, edges=edges)
    entropy = jnp.mean(entropies)
    return entropy + train.consistency * jnp.mean(gaps), entropy


def _with_shortcut(
    model: LanguageModel,
    shorter: LanguageModel,
    inputs: Array,
    targets: Array,
    key: Any,
    edges: Float[Array, " edges"],
    train: TrainConfig,
) -> tuple[Array, Array]:
    entropies, others, distance = token_losses_and_shortcut(
        model, shorter, inputs, targets, key=key, edges=edges
    )
    entropy = jnp.mean(entropies)
    return entropy + train.shortcut * (jnp.mean(others) + distance), entropy


def make_distillation(train: TrainConfig, distill: DistillConfig) -> Objective:
    """The objective with a teacher, which is given beside the batch."""
    weight, temperature = distill.weight, distill.temperature

    def objective(
        model: LanguageModel,
        inputs: Array,
        targets: Array,
        *,
        key: Any,
        depth_key: Any,
        done: Any = 1.0,
        teacher: LanguageModel,
    ) -> tuple[Array, Array]:
        entropies, divergences = token_losses_and_divergences(
            freeze(model, train.trainable),
            teacher,
            inputs,
            targets,
            temperature=temperature,
            key=key,
        )
        entropy = jnp.mean(entropies)
        return (1 - weight) * entropy + weight * temperature**2 * jnp.mean(divergences), entropy

    return objective


def step_flops(
    train: TrainConfig, model: LanguageModel, tokens: int, *, evaluations: float | None = None
) -> int:
    """Of a training step, on average over what it may draw. `model` may be of shapes alone.

    `evaluations` is how many a solver made on average; the backward pass counts as two forward
    passes, as everywhere.
    """
    parts = train.grad_accum
    if evaluations is not None:
        return count_flops(model, evaluations=evaluations).per_step(tokens, parts)
    if train.backprop_steps is not None:
        return truncated_flops(train, train.backprop_steps, model, tokens)
    numbers = parse_jitter(train.depth_jitter).numbers or (model.num_steps,)
    if train.consistency:
        numbers = (*numbers, *(2 * number for number in numbers))
    each = [
        count_flops(eqx.filter_eval_shape(lambda m, n=number: m.at_depth(n), model)).per_step(
            tokens, parts
        )
        for number in numbers
    ]
    mean = sum(each) // len(each)
    if train.shortcut:
        return count_flops(model).per_step(tokens, parts) + mean
    return (1 + bool(train.consistency)) * mean
