"""Learning rate as a function of the update: linear warm-up, then one of four shapes.

    lr(k) = peak * min(1, (k + 1) / warmup) * shape((k - warmup) / (steps - warmup))

With nanoGPT's numbers this is nanoGPT's schedule. Updates that were skipped do not count.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from qkvflow.errors import unknown
from qkvflow.training.config import SCHEDULES, OptimConfig

Schedule = Callable[[Any], Float[Array, ""]]


def make_schedule(optim: OptimConfig, steps: int) -> Schedule:
    """The learning rate of update k = 0, 1, ..., of `steps` in all."""
    kind = optim.schedule
    if kind not in SCHEDULES:
        raise unknown("schedule", kind, SCHEDULES)
    rest = max(steps - optim.warmup, 1)
    low = optim.final_lr

    def schedule(count: Any) -> Float[Array, ""]:
        k = jnp.asarray(count, jnp.float32)
        rise = jnp.minimum(1.0, (k + 1.0) / max(optim.warmup, 1))
        done = jnp.clip((k - optim.warmup) / rest, 0.0, 1.0)
        if kind == "cosine":
            shape = low + (1.0 - low) * 0.5 * (1.0 + jnp.cos(jnp.pi * done))
        elif kind == "linear":
            shape = low + (1.0 - low) * (1.0 - done)
        elif kind == "wsd":
            left = jnp.clip((1.0 - done) / max(optim.decay_share, 1.0 / rest), 0.0, 1.0)
            shape = low + (1.0 - low) * left
        else:
            shape = jnp.ones(())
        return optim.lr * rise * shape

    return schedule
