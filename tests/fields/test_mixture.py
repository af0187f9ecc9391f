"""The weighted sum with rules of its own for gradients, against plain differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import tiny

from qkvflow.fields.parts.mixture import mixture


@pytest.mark.parametrize("shape", [(5,), (5, 3), (2, 5, 3)])
@pytest.mark.parametrize("depth", [1, 4])
def test_gradients_equal_plain_ones(depth: int, shape: tuple[int, ...]):
    keys = jax.random.split(jax.random.key(0), 3)
    coefficients = jax.random.normal(keys[0], (depth, 7))
    maps = jax.random.normal(keys[1], (7, *shape))
    weights = jax.random.normal(keys[2], (depth, *shape))

    def plain(c: jax.Array, m: jax.Array) -> jax.Array:
        return jnp.sum(weights * jnp.sin(jnp.tensordot(c, m, 1)))

    def ours(c: jax.Array, m: jax.Array) -> jax.Array:
        return jnp.sum(weights * jnp.sin(mixture(c, m)))

    expected = jax.grad(plain, (0, 1))(coefficients, maps)
    for found in (
        jax.grad(ours, (0, 1))(coefficients, maps),
        jax.tree.map(
            lambda x: x[0], jax.vmap(jax.grad(ours, (0, 1)))(coefficients[None], maps[None])
        ),
    ):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("field", ["hypernet", "basis", "low-rank"])
def test_weights_can_be_differentiated_by_depth(field: str):
    """Forward, at one depth: dW/dt against a difference quotient."""
    model = tiny(field, d_model=16)

    def weight(t: jax.Array) -> jax.Array:
        return jax.tree.leaves(model.field.at(t))[0]

    t, step = jnp.float32(0.4), 1e-3
    slope = jax.jvp(weight, (t,), (jnp.float32(1.0),))[1]
    quotient = (weight(t + step) - weight(t - step)) / (2 * step)
    np.testing.assert_allclose(slope, quotient, atol=1e-2)
