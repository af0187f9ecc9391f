"""A stable diagonal recurrence: x <- exp(-delta A) x + delta B e (Parcae, arXiv 2604.12946).

A, delta and B are vectors, one value for each channel; A = exp(log_a) and delta = exp(log_delta)
are positive under any update, so the state decays by a factor below 1 whatever is learnt, and
without the block x would settle at delta B e / (1 - exp(-delta A)). It begins with A = 1,
exp(-delta A) = 1/2 and delta B = 1/2: the mean of the state and the input.
"""

import math
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from qkvflow.blocks.base import AbstractWeights, Role
from qkvflow.injections.base import AbstractInjection
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.registry import INJECTIONS


class Recurrence(AbstractWeights):
    log_a: Float[Array, " d_model"]
    log_delta: Float[Array, " d_model"]
    b: Float[Array, " d_model"]

    roles: ClassVar[dict[str, Role]] = {"log_a": "log", "log_delta": "log", "b": "gain"}


class Diagonal(AbstractInjection):
    recurrence: Recurrence

    def __call__(
        self, x: Float[Array, "rows d_model"], e: Float[Array, "rows d_model"]
    ) -> Float[Array, "rows d_model"]:
        delta = jnp.exp(self.recurrence.log_delta)
        decay = jnp.exp(-delta * jnp.exp(self.recurrence.log_a))
        return decay[None] * x + (delta * self.recurrence.b)[None] * e

    def flops_per_token(self) -> int:
        return 0


@INJECTIONS.register("diagonal")
def init_diagonal(config: ModelConfig, key: PRNGKeyArray) -> Diagonal:
    ones, delta = jnp.ones(config.d_model), math.log(2.0)
    return Diagonal(Recurrence(0.0 * ones, math.log(delta) * ones, 0.5 / delta * ones))
