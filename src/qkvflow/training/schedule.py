"""Learning rate as a function of the update: linear warm-up, then one of four shapes.

    lr(k) = peak * min(1, (k + 1) / warmup) * shape((k - warmup) / (steps - warmup))

With nanoGPT's numbers this is nanoGPT's schedule. Updates that were skipped do not count.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from qkvflow.errors import unknown
from qkvflow.runs.sections import SCHEDULES, OptimConfig
from qkvflow.training.step import Hyper, Schedule


def make_schedule(optim: OptimConfig) -> Schedule:
    """`schedule(hyper, k)`: the learning rate of update k = 0, 1, ..., of `hyper.steps` in all."""
    kind, low = optim.schedule, optim.min_lr_ratio
    if kind not in SCHEDULES:
        raise unknown("schedule", kind, SCHEDULES)

    def schedule(hyper: Hyper, count: Any) -> Float[Array, ""]:
        k, warmup = jnp.asarray(count, jnp.float32), hyper.warmup.astype(jnp.float32)
        rest = jnp.maximum(hyper.steps.astype(jnp.float32) - warmup, 1.0)
        rise = jnp.minimum(1.0, (k + 1.0) / jnp.maximum(warmup, 1.0))
        done = jnp.clip((k - warmup) / rest, 0.0, 1.0)
        if kind == "cosine":
            shape = low + (1.0 - low) * 0.5 * (1.0 + jnp.cos(jnp.pi * done))
        elif kind == "linear":
            shape = low + (1.0 - low) * (1.0 - done)
        elif kind == "wsd":
            fraction = jnp.maximum(optim.decay_fraction, 1.0 / rest)
            shape = low + (1.0 - low) * jnp.clip((1.0 - done) / fraction, 0.0, 1.0)
        else:
            shape = jnp.ones(())
        return hyper.lr * rise * shape

    return schedule
