"""Products, norms and activations on rows, with backward passes of their own.

What is kept for the backward pass is the input and at most two numbers for every row: the rest is
cheaper to make again than to move. Sums over rows and over channels are in float32.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qkvflow.blocks.kernels.choice import plain

Matrix = Float[Array, "rows d"]


# y = x W + b

FEW_ROWS = 128
"""Below this a backward pass of its own gains nothing, and forward differentiation stays possible:
of weights by depth, whose embeddings have a row for each depth."""


def product(
    x: Float[Array, "rows d_in"],
    weight: Float[Array, "d_in d_out"],
    bias: Float[Array, " d_out"] | None,
) -> Float[Array, "rows d_out"]:
    """y = x W + b in the type of the matrix."""
    use_plain = plain() or x.shape[0] < FEW_ROWS
    return (plain_product if use_plain else _product)(x.astype(weight.dtype), weight, bias)


def plain_product(x: Array, weight: Array, bias: Array | None) -> Array:
    y = x @ weight
    return y if bias is None else y + bias[None].astype(y.dtype)


@jax.custom_vjp
def _product(x: Array, weight: Array, bias: Array | None) -> Array:
    return plain_product(x, weight, bias)


def _product_forward(x: Array, weight: Array, bias: Array | None) -> tuple[Array, tuple]:
    return plain_product(x, weight, bias), (x, weight, bias)


def _product_backward(kept: tuple, g: Array) -> tuple[Array, Array, Array | None]:
    x, weight, bias = kept
    # x^T g runs at two thirds of the speed of g^T x where its result is tall; the barrier keeps XLA
    # from taking one for the other.
    tall = weight.shape[0] > weight.shape[1]
    grad = jax.lax.optimization_barrier(g.T @ x).T if tall else x.T @ g
    grad_bias = None if bias is None else jnp.sum(g.astype(bias.dtype), axis=0)
    return g @ weight.T, grad.astype(weight.dtype), grad_bias


_product.defvjp(_product_forward, _product_backward)


# y = scale (x - mean) / sqrt(var + eps) + shift


def layer_norm(
    x: Matrix, scale: Float[Array, " d"], shift: Float[Array, " d"] | None, eps: float
) -> Matrix:
    """Mean 0 and variance 1 along the channels, then scale and shift."""
    return (plain_layer_norm if plain() else _layer_norm)(x, scale, shift, eps)


def plain_layer_norm(x: Array, scale: Array, shift: Array | None, eps: float) -> Array:
    y = x.astype(jnp.float32)
    y = y - jnp.mean(y, axis=-1, keepdims=True)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + eps)
    y = y * scale[None]
    if shift is not None:
        y = y + shift[None]
    return y.astype(x.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _layer_norm(x: Array, scale: Array, shift: Array | None, eps: float) -> Array:
    return plain_layer_norm(x, scale, shift, eps)


def _layer_norm_forward(
    x: Array, scale: Array, shift: Array | None, eps: float
) -> tuple[Array, tuple]:
    y = x.astype(jnp.float32)
    mean = jnp.mean(y, axis=-1, keepdims=True)
    y = y - mean
    size = jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + eps)
    y = y * size * scale[None]
    if shift is not None:
        y = y + shift[None]
    return y.astype(x.dtype), (x, scale, shift, mean, size)


def _layer_norm_backward(eps: float, kept: tuple, g: Array) -> tuple[Array, Array, Array | None]:
    x, scale, shift, mean, size = kept
    g = g.astype(jnp.float32)
    unit = (x.astype(jnp.float32) - mean) * size
    scaled = g * scale[None]
    along = jnp.mean(scaled * unit, axis=-1, keepdims=True)
    grad = size * (scaled - jnp.mean(scaled, axis=-1, keepdims=True) - unit * along)
    grad_shift = None if shift is None else jnp.sum(g, axis=0).astype(shift.dtype)
    return grad.astype(x.dtype), jnp.sum(g * unit, axis=0).astype(scale.dtype), grad_shift


_layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)


# y = scale x / sqrt(mean(x^2) + eps)


def rms_norm(x: Matrix, scale: Float[Array, " d"], eps: float) -> Matrix:
    """Mean square 1 along the channels, then scale."""
    return (plain_rms_norm if plain() else _rms_norm)(x, scale, eps)


def plain_rms_norm(x: Array, scale: Array, eps: float) -> Array:
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + eps)
    return (y * scale[None]).astype(x.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _rms_norm(x: Array, scale: Array, eps: float) -> Array:
    return plain_rms_norm(x, scale, eps)


def _rms_norm_forward(x: Array, scale: Array, eps: float) -> tuple[Array, tuple]:
    y = x.astype(jnp.float32)
    size = jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + eps)
    return (y * size * scale[None]).astype(x.dtype), (x, scale, size)


def _rms_norm_backward(eps: float, kept: tuple, g: Array) -> tuple[Array, Array]:
    x, scale, size = kept
    g = g.astype(jnp.float32)
    unit = x.astype(jnp.float32) * size
    scaled = g * scale[None]
    grad = size * (scaled - unit * jnp.mean(scaled * unit, axis=-1, keepdims=True))
    return grad.astype(x.dtype), jnp.sum(g * unit, axis=0).astype(scale.dtype)


_rms_norm.defvjp(_rms_norm_forward, _rms_norm_backward)


# y = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))

_SLOPE, _CUBE = 0.7978845608028654, 0.044715


def gelu(x: Matrix) -> Matrix:
    """GELU in its tanh form, as in GPT-2."""
    return (plain_gelu if plain() else _gelu)(x)


def plain_gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=True)


@jax.custom_vjp
def _gelu(x: Array) -> Array:
    return plain_gelu(x)


def _gelu_forward(x: Array) -> tuple[Array, Array]:
    return plain_gelu(x), x


def _gelu_backward(x: Array, g: Array) -> tuple[Array]:
    y = x.astype(jnp.float32)
    square = y * y
    bend = jnp.tanh(_SLOPE * (y + _CUBE * y * square))
    inner = _SLOPE * (1.0 + 3.0 * _CUBE * square)
    slope = 0.5 * (1.0 + bend) + 0.5 * y * (1.0 - bend * bend) * inner
    return ((g.astype(jnp.float32) * slope).astype(x.dtype),)


_gelu.defvjp(_gelu_forward, _gelu_backward)
