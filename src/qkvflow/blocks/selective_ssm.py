"""The selective state space layer of Mamba-2 (Dao and Gu 2024, "Transformers are SSMs").

    z, xBC, delta = x W_in;  x, B, C = silu(conv(xBC));  delta = softplus(delta + bias)
    h_k = exp(delta_k A) h_{k-1} + delta_k x_k B_k^T,   y_k = h_k C_k + D x_k
    y = RMSNorm(y silu(z)) W_out

A is one negative number per head, B and C are shared by the heads of a group, and B, C and delta
depend on the input: the layer chooses what to remember. Symbols as in the paper: `d_state` N,
`head_dim` P, `conv_width` d_conv. The order of the channels of W_in, and of the gate and
the norm, is that of the published Mamba-2, so that its weights can be carried over.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from qkvflow.blocks.base import (
    AbstractMixer,
    AbstractWeights,
    Linear,
    Mixes,
    Role,
    Rows,
    init_linear,
)
from qkvflow.blocks.kernels.convolution import causal_conv
from qkvflow.blocks.kernels.duality import chunked_flops_per_token, ssd_chunked, ssd_scan, ssd_step
from qkvflow.blocks.kernels.norm import RMSNorm
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.registry import MIXERS


class Convolution(AbstractWeights):
    kernel: Float[Array, "*depth width channels"]
    bias: Float[Array, "*depth channels"]

    roles: ClassVar[dict[str, Role]] = {"kernel": "kernel", "bias": "bias"}


class Decay(AbstractWeights):
    log_a: Float[Array, "*depth heads"]
    d: Float[Array, "*depth heads"]
    delta_bias: Float[Array, "*depth heads"]

    roles: ClassVar[dict[str, Role]] = {"log_a": "log", "d": "gain", "delta_bias": "offset"}


class SelectiveState(eqx.Module):
    """The last inputs of the convolution and the state: constant in the length."""

    tail: Float[Array, "batch past channels"]
    state: Float[Array, "batch heads head_dim d_state"]


class SelectiveSSM(AbstractMixer):
    """A state space layer whose input, output and step are read from the input (Mamba-2)."""

    mixes: ClassVar[Mixes] = "tokens"

    in_proj: Linear
    conv: Convolution
    decay: Decay
    norm: RMSNorm
    out_proj: Linear
    head_dim: int = eqx.field(static=True)
    d_state: int = eqx.field(static=True)
    groups: int = eqx.field(static=True)

    @property
    def num_heads(self) -> int:
        return self.decay.log_a.shape[-1]

    def _run(
        self, x: Array, rows: Rows, past: SelectiveState, recurrence: Any
    ) -> tuple[Array, SelectiveState]:
        inner, shared = self.num_heads * self.head_dim, self.groups * self.d_state
        z, packed, delta = jnp.split(self.in_proj(x), [inner, 2 * inner + 2 * shared], axis=-1)
        kernel = self.conv.kernel.astype(packed.dtype)
        packed, tail = causal_conv(rows.unfold(packed), kernel, past.tail.astype(packed.dtype))
        packed = jax.nn.silu(packed + self.conv.bias[None, None].astype(packed.dtype))
        values, b, c = jnp.split(packed, [inner, inner + shared], axis=-1)
        values = values.reshape(rows.batch, rows.seq, self.num_heads, self.head_dim)
        b = b.reshape(rows.batch, rows.seq, self.groups, self.d_state)
        c = c.reshape(rows.batch, rows.seq, self.groups, self.d_state)
        delta = jax.nn.softplus(delta.astype(jnp.float32) + self.decay.delta_bias[None])
        a = -jnp.exp(self.decay.log_a)
        y, state = recurrence(values, rows.unfold(delta), a, b, c, past.state)
        y = y + self.decay.d[None, None, :, None].astype(y.dtype) * values
        y = rows.fold(y).reshape(rows.batch * rows.seq, inner)
        y = self.out_proj(self.norm(y * jax.nn.silu(z).astype(y.dtype)))
        return y, SelectiveState(tail.astype(past.tail.dtype), state)

    def __call__(
        self, x: Float[Array, "rows d_model"], rows: Rows, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "rows d_model"]:
        past = self.init_state(rows.batch, rows.seq, jnp.dtype(jnp.float32))
        return self._run(x, rows, past, ssd_chunked)[0]

    def scanned(self, x: Float[Array, "rows d_model"], rows: Rows) -> Float[Array, "rows d_model"]:
        """The plain reference twin of `__call__`: token after token."""
        past = self.init_state(rows.batch, rows.seq, jnp.dtype(jnp.float32))
        return self._run(x, rows, past, ssd_scan)[0]

    def init_state(self, batch: int, length: int, dtype: jnp.dtype) -> SelectiveState:
        width, channels = self.conv.kernel.shape[-2:]
        return SelectiveState(
            jnp.zeros((batch, width - 1, channels), dtype),
            jnp.zeros((batch, self.num_heads, self.head_dim, self.d_state), jnp.float32),
        )

    def extend(
        self, x: Float[Array, "rows d_model"], rows: Rows, state: SelectiveState
    ) -> tuple[Float[Array, "rows d_model"], SelectiveState]:
        def one_token(x, delta, a, b, c, initial):
            y, final = ssd_step(x[:, 0], delta[:, 0], a, b[:, 0], c[:, 0], initial)
            return y[:, None], final

        return self._run(x, rows, state, one_token if rows.seq == 1 else ssd_chunked)

    def flops_per_token(self, context: int) -> int:
        core = chunked_flops_per_token(
            self.num_heads, self.head_dim, self.d_state, self.groups, context
        )
        width, channels = self.conv.kernel.shape[-2:]
        products = self.in_proj.flops_per_token + self.out_proj.flops_per_token
        return products + 2 * width * channels + round(core)


@MIXERS.register("selective-ssm")
def init_selective_ssm(config: ModelConfig, out_scale: float, key: PRNGKeyArray) -> SelectiveSSM:
    """A in -[1, 16], delta in [0.001, 0.1], D = 1, as published."""
    key_in, key_conv, key_a, key_delta, key_out = jax.random.split(key, 5)
    d_model, std = config.d_model, config.init_std
    inner = config.ssm_expand * d_model
    heads = inner // config.d_ssm_head
    channels = inner + 2 * config.ssm_groups * config.d_state
    span = jnp.log(jnp.array([1e-3, 1e-1]))
    delta = jnp.exp(jax.random.uniform(key_delta, (heads,), minval=span[0], maxval=span[1]))
    bound = config.conv_width**-0.5
    return SelectiveSSM(
        in_proj=init_linear(
            d_model, inner + channels + heads, bias=False, std=std, key=key_in, role="in_proj"
        ),
        conv=Convolution(
            jax.random.uniform(
                key_conv, (config.conv_width, channels), minval=-bound, maxval=bound
            ),
            jnp.zeros(channels),
        ),
        decay=Decay(
            log_a=jnp.log(jax.random.uniform(key_a, (heads,), minval=1.0, maxval=16.0)),
            d=jnp.ones(heads),
            # The inverse of softplus, so that softplus(delta_bias) = delta.
            delta_bias=delta + jnp.log(-jnp.expm1(-delta)),
        ),
        norm=RMSNorm(jnp.ones(inner), config.norm_eps),
        out_proj=init_linear(
            inner, d_model, bias=False, std=std * out_scale, key=key_out, role="out_proj"
        ),
        head_dim=config.d_ssm_head,
        d_state=config.d_state,
        groups=config.ssm_groups,
    )
