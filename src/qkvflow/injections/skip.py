"""A skip from the input with learnt weights: x <- a x + b e, a and b for each channel.

With no prelude e is the embedding, which then reaches every step (as in modded-nanogpt's x0
lambdas). It begins with a = 1 and b = 1/10: near to none.
"""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from qkvflow.blocks.base import AbstractWeights, Role
from qkvflow.injections.base import AbstractInjection
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.registry import INJECTIONS


class Gains(AbstractWeights):
    a: Float[Array, " d_model"]
    b: Float[Array, " d_model"]

    roles: ClassVar[dict[str, Role]] = {"a": "gain", "b": "gain"}


class Skip(AbstractInjection):
    gains: Gains

    def __call__(
        self, x: Float[Array, "rows d_model"], e: Float[Array, "rows d_model"]
    ) -> Float[Array, "rows d_model"]:
        return self.gains.a[None] * x + self.gains.b[None] * e

    def flops_per_token(self) -> int:
        return 0


@INJECTIONS.register("skip")
def init_skip(config: ModelConfig, key: PRNGKeyArray) -> Skip:
    ones = jnp.ones(config.d_model)
    return Skip(Gains(ones, 0.1 * ones))
