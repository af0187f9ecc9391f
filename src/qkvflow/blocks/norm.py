"""LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019), on rows.

Both compute in float32 whatever the type of their input. Scale and shift are separate arrays
because fields treat them by role: a generated scale is added to 1, a generated shift to 0.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qkvflow.blocks.base import AbstractNorm, Role


class LayerNorm(AbstractNorm):
    """y = scale (x - mean) / sqrt(var + eps) + shift."""

    scale: Float[Array, "*depth d_model"]
    shift: Float[Array, "*depth d_model"] | None
    eps: float = eqx.field(static=True, default=1e-5)

    roles: ClassVar[dict[str, Role]] = {"scale": "scale", "shift": "bias"}

    def __call__(self, x: Float[Array, "rows d_model"]) -> Float[Array, "rows d_model"]:
        y = x.astype(jnp.float32)
        y = y - jnp.mean(y, axis=-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + self.eps)
        y = y * self.scale[None]
        if self.shift is not None:
            y = y + self.shift[None]
        return y.astype(x.dtype)


class RMSNorm(AbstractNorm):
    """y = scale x / sqrt(mean(x^2) + eps)."""

    scale: Float[Array, "*depth d_model"]
    eps: float = eqx.field(static=True, default=1e-5)

    roles: ClassVar[dict[str, Role]] = {"scale": "scale"}

    def __call__(self, x: Float[Array, "rows d_model"]) -> Float[Array, "rows d_model"]:
        y = x.astype(jnp.float32)
        y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + self.eps)
        return (y * self.scale[None]).astype(x.dtype)


def init_norm(kind: str, d_model: int, *, bias: bool, eps: float) -> AbstractNorm:
    """Scale 1, shift 0. `bias` gives LayerNorm its shift."""
    scale = jnp.ones(d_model)
    if kind == "rmsnorm":
        return RMSNorm(scale, eps)
    return LayerNorm(scale, jnp.zeros(d_model) if bias else None, eps)
