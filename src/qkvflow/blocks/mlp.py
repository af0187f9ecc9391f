"""Channel mixers that look at one token at a time.

MLP:     y = gelu(x W_up + b) W_down + b, with the tanh form of GELU (as in GPT-2)
SwiGLU:  y = (silu(x W_gate) * (x W_up)) W_down (Shazeer 2020, as in Llama)
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from qkvflow.blocks.base import AbstractMixer, Linear, Rows, init_linear
from qkvflow.blocks.kernels import gelu


class MLP(AbstractMixer):
    up: Linear
    down: Linear

    def __call__(
        self, x: Float[Array, "rows d_model"], rows: Rows, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "rows d_model"]:
        return self.down(gelu(self.up(x)))

    def init_state(self, batch: int, length: int, dtype: jnp.dtype) -> None:
        return None

    def extend(
        self, x: Float[Array, "rows d_model"], rows: Rows, state: None
    ) -> tuple[Float[Array, "rows d_model"], None]:
        return self(x, rows), None

    def flops_per_token(self, context: int) -> int:
        return self.up.flops_per_token + self.down.flops_per_token


class SwiGLU(AbstractMixer):
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


def init_mlp(
    d_model: int, d_hidden: int, *, bias: bool, std: float, out_std: float, key: PRNGKeyArray
) -> MLP:
    key_up, key_down = jax.random.split(key)
    return MLP(
        init_linear(d_model, d_hidden, bias=bias, std=std, key=key_up),
        init_linear(d_hidden, d_model, bias=bias, std=out_std, key=key_down),
    )


def init_swiglu(
    d_model: int, d_hidden: int, *, bias: bool, std: float, out_std: float, key: PRNGKeyArray
) -> SwiGLU:
    key_gate, key_up, key_down = jax.random.split(key, 3)
    return SwiGLU(
        init_linear(d_model, d_hidden, bias=bias, std=std, key=key_gate),
        init_linear(d_model, d_hidden, bias=bias, std=std, key=key_up),
        init_linear(d_hidden, d_model, bias=bias, std=out_std, key=key_down),
    )
