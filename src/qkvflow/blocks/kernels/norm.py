"""LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019), on rows.

Both compute in float32 whatever the type of their input. Scale and shift are separate arrays
because fields treat them by role: a generated scale is added to 1, a generated shift to 0.
"""

from functools import partial
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qkvflow.blocks.base import AbstractNorm, Role

# Only the input is kept for the backward pass: the rest is cheaper to make again than to move.


@partial(jax.checkpoint, prevent_cse=False, static_argnums=3)
def _layer_norm(x: Array, scale: Array, shift: Array | None, eps: float) -> Array:
    y = x.astype(jnp.float32)
    y = y - jnp.mean(y, axis=-1, keepdims=True)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + eps)
    y = y * scale[None]
    if shift is not None:
        y = y + shift[None]
    return y.astype(x.dtype)


@partial(jax.checkpoint, prevent_cse=False, static_argnums=2)
def _rms_norm(x: Array, scale: Array, eps: float) -> Array:
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + eps)
    return (y * scale[None]).astype(x.dtype)


class LayerNorm(AbstractNorm):
    """y = scale (x - mean) / sqrt(var + eps) + shift."""

    scale: Float[Array, "*depth d_model"]
    shift: Float[Array, "*depth d_model"] | None
    eps: float = eqx.field(static=True, default=1e-5)

    roles: ClassVar[dict[str, Role]] = {"scale": "scale", "shift": "bias"}

    def __call__(self, x: Float[Array, "rows d_model"]) -> Float[Array, "rows d_model"]:
        return _layer_norm(x, self.scale, self.shift, self.eps)


class RMSNorm(AbstractNorm):
    """y = scale x / sqrt(mean(x^2) + eps)."""

    scale: Float[Array, "*depth d_model"]
    eps: float = eqx.field(static=True, default=1e-5)

    roles: ClassVar[dict[str, Role]] = {"scale": "scale"}

    def __call__(self, x: Float[Array, "rows d_model"]) -> Float[Array, "rows d_model"]:
        return _rms_norm(x, self.scale, self.eps)


def init_norm(kind: str, d_model: int, *, bias: bool, eps: float) -> AbstractNorm:
    """Scale 1, shift 0. `bias` gives LayerNorm its shift."""
    scale = jnp.ones(d_model)
    if kind == "rmsnorm":
        return RMSNorm(scale, eps)
    return LayerNorm(scale, jnp.zeros(d_model) if bias else None, eps)
