"""The MLP of GPT-2: y = gelu(x W_up + b) W_down + b, GELU in its tanh or its exact form."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from qkvflow.blocks.base import AbstractMixer, Linear, Mixes, Rows, init_linear
from qkvflow.blocks.kernels import gelu
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.registry import MIXERS


class MLP(AbstractMixer):
    """Two matrices with a GELU between them."""

    mixes: ClassVar[Mixes] = "channels"

    up: Linear
    down: Linear
    activation: str = eqx.field(static=True, default="gelu_tanh")

    def __call__(
        self, x: Float[Array, "rows d_model"], rows: Rows, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "rows d_model"]:
        h = self.up(x)
        return self.down(gelu(h) if self.activation == "gelu_tanh" else _exact_gelu(h))

    def init_state(self, batch: int, length: int, dtype: jnp.dtype) -> None:
        return None

    def extend(
        self, x: Float[Array, "rows d_model"], rows: Rows, state: None
    ) -> tuple[Float[Array, "rows d_model"], None]:
        return self(x, rows), None

    def flops_per_token(self, context: int) -> int:
        return self.up.flops_per_token + self.down.flops_per_token


def _exact_gelu(x: Float[Array, "rows d_hidden"]) -> Float[Array, "rows d_hidden"]:
    return jax.nn.gelu(x, approximate=False)


@MIXERS.register("mlp")
def init_mlp(config: ModelConfig, out_scale: float, key: PRNGKeyArray) -> MLP:
    key_up, key_down = jax.random.split(key)
    d_model, d_hidden, bias, std = config.d_model, config.d_hidden, config.bias, config.init_std
    return MLP(
        init_linear(d_model, d_hidden, bias=bias, std=std, key=key_up, role="in_proj"),
        init_linear(
            d_hidden, d_model, bias=bias, std=std * out_scale, key=key_down, role="out_proj"
        ),
        config.activation,
    )
