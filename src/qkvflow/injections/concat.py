"""A linear map of the state and the input: x <- [x; e] A, the adapter of Geiping et al. 2025.

A is 2 d_model x d_model, without a bias. Its two halves are stored apart, x W_x + e W_e, so that
nothing has to be concatenated. Entries begin with the variance 1 / (2 d_model), which keeps the
size of the state; the authors draw theirs with 2 / (5 d_model), as all of their matrices.
"""

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from qkvflow.blocks.base import Linear, init_linear
from qkvflow.injections.base import AbstractInjection
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.registry import INJECTIONS


class Concat(AbstractInjection):
    of_state: Linear
    of_input: Linear

    def __call__(
        self, x: Float[Array, "rows d_model"], e: Float[Array, "rows d_model"]
    ) -> Float[Array, "rows d_model"]:
        return (self.of_state(x) + self.of_input(e)).astype(x.dtype)

    def flops_per_token(self) -> int:
        # e A_e is the same in every step, but is made in each: the map is written for one.
        return self.of_state.flops_per_token + self.of_input.flops_per_token


@INJECTIONS.register("concat")
def init_concat(config: ModelConfig, key: PRNGKeyArray) -> Concat:
    d_model, std = config.d_model, (2.0 * config.d_model) ** -0.5
    key_state, key_input = jax.random.split(key)
    return Concat(
        init_linear(d_model, d_model, bias=False, std=std, key=key_state, role="matrix"),
        init_linear(d_model, d_model, bias=False, std=std, key=key_input, role="matrix"),
    )
