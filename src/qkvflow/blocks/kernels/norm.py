"""LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019), on rows.

Both compute in float32 whatever the type of their input. Scale and shift are separate arrays
because fields treat them by role: a generated scale is added to 1, a generated shift to 0.
"""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from qkvflow.blocks.base import AbstractNorm, Role
from qkvflow.blocks.kernels import layer_norm, rms_norm


class LayerNorm(AbstractNorm):
    """y = scale (x - mean) / sqrt(var + eps) + shift."""

    scale: Float[Array, "*depth d_model"]
    shift: Float[Array, "*depth d_model"] | None
    eps: float = eqx.field(static=True, default=1e-5)

    roles: ClassVar[dict[str, Role]] = {"scale": "scale", "shift": "bias"}

    def __call__(self, x: Float[Array, "rows d_model"]) -> Float[Array, "rows d_model"]:
        return layer_norm(x, self.scale, self.shift, self.eps)


class RMSNorm(AbstractNorm):
    """y = scale x / sqrt(mean(x^2) + eps)."""

    scale: Float[Array, "*depth d_model"]
    eps: float = eqx.field(static=True, default=1e-5)

    roles: ClassVar[dict[str, Role]] = {"scale": "scale"}

    def __call__(self, x: Float[Array, "rows d_model"]) -> Float[Array, "rows d_model"]:
        return rms_norm(x, self.scale, self.eps)


class ChannelScale(AbstractNorm):
    """y = scale x: no norm, but a scale in the place of one (LayerScale, Touvron et al. 2021)."""

    scale: Float[Array, "*depth d_model"]

    roles: ClassVar[dict[str, Role]] = {"scale": "scale"}

    def __call__(self, x: Float[Array, "rows d_model"]) -> Float[Array, "rows d_model"]:
        return (x * self.scale[None]).astype(x.dtype)


class NoNorm(AbstractNorm):
    """y = x, for a state that is normalised already."""

    roles: ClassVar[dict[str, Role]] = {}

    def __call__(self, x: Float[Array, "rows d_model"]) -> Float[Array, "rows d_model"]:
        return x


def init_norm(kind: str, d_model: int, *, bias: bool, eps: float) -> AbstractNorm:
    """Scale 1, shift 0. `bias` gives LayerNorm its shift."""
    scale = jnp.ones(d_model)
    if kind == "rmsnorm":
        return RMSNorm(scale, eps)
    return LayerNorm(scale, jnp.zeros(d_model) if bias else None, eps)
