"""The gated MLP of Llama: y = (silu(x W_gate) * (x W_up)) W_down (Shazeer 2020)."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from qkvflow.blocks.base import AbstractMixer, Linear, Mixes, Rows, init_linear
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.registry import MIXERS


class SwiGLU(AbstractMixer):
    """The gated MLP of Llama."""

    mixes: ClassVar[Mixes] = "channels"

    gate: Linear
    up: Linear
    down: Linear

    def __call__(
        self, x: Float[Array, "rows d_model"], rows: Rows, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "rows d_model"]:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))

    def init_state(self, batch: int, length: int, dtype: jnp.dtype) -> None:
        return None

    def extend(
        self, x: Float[Array, "rows d_model"], rows: Rows, state: None
    ) -> tuple[Float[Array, "rows d_model"], None]:
        return self(x, rows), None

    def flops_per_token(self, context: int) -> int:
        return sum(layer.flops_per_token for layer in (self.gate, self.up, self.down))


@MIXERS.register("swiglu")
def init_swiglu(config: ModelConfig, out_scale: float, key: PRNGKeyArray) -> SwiGLU:
    key_gate, key_up, key_down = jax.random.split(key, 3)
    d_model, d_hidden, bias, std = config.d_model, config.d_hidden, config.bias, config.init_std
    return SwiGLU(
        init_linear(d_model, d_hidden, bias=bias, std=std, key=key_gate, role="in_proj"),
        init_linear(d_model, d_hidden, bias=bias, std=std, key=key_up, role="in_proj"),
        init_linear(
            d_hidden, d_model, bias=bias, std=std * out_scale, key=key_down, role="out_proj"
        ),
    )
