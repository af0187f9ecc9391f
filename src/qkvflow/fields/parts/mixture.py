"""Weighted sums W_n = sum_k c_nk map_k of maps that are the largest arrays there are.

Plain differentiation of this product makes the gradient of the maps transposed and then copies
it, and reduces the gradient of c over a whole array at a speed far from that of memory: together
three times the forward pass. The rules here read and write each map once.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def mixture(
    coefficients: Float[Array, "depth mixed"], maps: Float[Array, " mixed *shape"]
) -> Float[Array, " depth *shape"]:
    """The sums for all depths, in one product."""
    if maps.ndim < 3 or coefficients.shape[0] == 1:
        # Nothing to gain, and forward differentiation stays possible.
        return jnp.tensordot(coefficients, maps, 1)
    return _mixture(coefficients, maps)


@jax.custom_vjp
def _mixture(coefficients: Array, maps: Array) -> Array:
    return jnp.tensordot(coefficients, maps, 1)


def _forward(coefficients: Array, maps: Array) -> tuple[Array, tuple[Array, Array]]:
    return jnp.tensordot(coefficients, maps, 1), (coefficients, maps)


def _backward(residuals: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    coefficients, maps = residuals
    axes = tuple(range(1, maps.ndim))

    def at_once(grad: Array, maps: Array) -> Array:
        return jnp.tensordot(grad, maps, (axes, axes))

    def by_map(grad: Array, maps: Array) -> Array:
        # A product with so long a contraction is slow on CPUs; one map after another is not.
        of_map = jax.lax.map(
            lambda each: jnp.tensordot(grad, each, (axes, tuple(range(each.ndim)))), maps
        )
        return of_map.T

    of_coefficients = jax.lax.platform_dependent(grad, maps, cpu=by_map, default=at_once)
    return of_coefficients, jnp.tensordot(coefficients, grad, ((0,), (0,)))


_mixture.defvjp(_forward, _backward)
