"""Recurrence in training: how many loops a step takes, and how many of them have a gradient.

    fixed              r is the model's num_steps
    4-32               r uniform over the range
    lognormal-poisson  r ~ Poisson(exp(tau)) + 1, tau ~ N(log r0 - s^2 / 2, s), with r0 the model's
                       num_steps and s = 1/2 (Geiping et al. 2025)

    ...+ramp:0.5       a curriculum: of the number drawn, the share 2 s / S at step s of S (up),
                       over the first half of the run, and all of it from then on

Of r steps the last k (`train.backprop_steps`) have a gradient; the r - k before them run in a loop
whose length is data. One program serves every r, and a step costs what its r costs. r is at least
k. A step's draw is a function of (seed, step), like its batch.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from qkvflow.lm import LanguageModel, count_flops, token_losses
from qkvflow.runs.depths import SIGMA, Recurrence, parse_recurrence
from qkvflow.runs.sections import TrainConfig
from qkvflow.training.step import Objective
from qkvflow.training.trainable import freeze


def draw(
    recurrence: Recurrence, num_steps: int, key: PRNGKeyArray, done: Any = 1.0
) -> Int[Array, ""]:
    """The number of steps of one training step, the one with which `done` of the run is."""
    drawn = _draw(recurrence, num_steps, key)
    share = jnp.minimum(recurrence.share(done), 1.0)
    # Less a little, so that a product that should be whole is not rounded beyond it.
    return jnp.maximum(jnp.ceil(share * drawn - 1e-3), 1.0).astype(jnp.int32)


def _draw(recurrence: Recurrence, num_steps: int, key: PRNGKeyArray) -> Int[Array, ""]:
    if recurrence.kind == "fixed":
        return jnp.int32(num_steps)
    if recurrence.kind == "range":
        return jax.random.randint(key, (), recurrence.least, recurrence.most + 1, jnp.int32)
    key_tau, key_count = jax.random.split(key)
    tau = jnp.log(num_steps) - SIGMA**2 / 2 + SIGMA * jax.random.normal(key_tau)
    return jax.random.poisson(key_count, jnp.exp(tau), dtype=jnp.int32) + 1


def truncated(train: TrainConfig, backprop_steps: int) -> Objective:
    """Cross-entropy at a drawn number of steps, with gradients through the last ones."""
    recurrence = parse_recurrence(train.recurrence)

    def objective(
        model: LanguageModel,
        inputs: Array,
        targets: Array,
        *,
        key: Any,
        depth_key: Any,
        done: Any = 1.0,
    ) -> tuple[Array, Array]:
        steps = draw(recurrence, model.num_steps, depth_key, done)
        last = freeze(model, train.trainable).at_depth(backprop_steps)
        free = jnp.maximum(steps - backprop_steps, 0)
        value = jnp.mean(token_losses(last, inputs, targets, key=key, free=free))
        return value, value

    return objective


def truncated_flops(
    train: TrainConfig, backprop_steps: int, model: LanguageModel, tokens: int
) -> int:
    """Of a training step on average: steps without a gradient run forward alone, a third."""
    one, two, last = (
        count_flops(eqx.filter_eval_shape(lambda m, n=n: m.at_depth(n), model))
        for n in (1, 2, backprop_steps)
    )
    recurrence = parse_recurrence(train.recurrence)
    mean = recurrence.mean_steps(model.num_steps, backprop_steps, train.steps)
    parts = train.grad_accum
    forward = (two.forward - one.forward) * tokens + parts * (two.generation - one.generation)
    return last.per_step(tokens, parts) + round((mean - backprop_steps) * forward)
