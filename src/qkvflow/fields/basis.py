"""Weights as a short series in depth: W(t) = sum_k phi_k(t) C_k.

`cosine`     phi_k = cos(pi k t)
`chebyshev`  phi_k = T_k(2t - 1)
`bspline`    clamped uniform B-splines, cubic where there are at least four functions

With fewer functions than layers this shares weights over depth, smoothly; a linear B-spline
with one knot per layer would be the per-layer field. At initialisation the constant function is
the standard initialisation of each weight, and matrices have a small random part in every
coefficient besides.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from qkvflow.blocks.base import AbstractWeights, is_matrix, is_weights
from qkvflow.errors import unknown
from qkvflow.fields.base import AbstractField, Depth, Depths, MakeBlock, at_one, rms
from qkvflow.fields.parts.mixture import mixture
from qkvflow.zoo.config import BASES, ModelConfig
from qkvflow.zoo.registry import FIELDS


def basis_functions(kind: str, ts: Depths, size: int) -> Float[Array, "depth basis"]:
    """phi_k(t) for each t and k = 0 .. size - 1."""
    t = jnp.asarray(ts, jnp.float32)[:, None]
    orders = jnp.arange(size, dtype=jnp.float32)[None]
    if kind == "cosine":
        return jnp.cos(jnp.pi * orders * t)
    if kind == "chebyshev":
        return jnp.cos(orders * jnp.arccos(jnp.clip(2.0 * t - 1.0, -1.0, 1.0)))
    if kind == "bspline":
        return _bsplines(t[:, 0], size, min(3, size - 1))
    raise unknown("basis", kind, BASES)


def _bsplines(ts: Float[Array, " depth"], size: int, degree: int) -> Float[Array, "depth basis"]:
    """Cox-de Boor recursion on clamped uniform knots; the functions sum to 1 on [0, 1]."""
    inner = np.linspace(0.0, 1.0, size - degree + 1)
    knots = np.concatenate([np.zeros(degree), inner, np.ones(degree)])
    # The last interval is closed, so that t = 1 belongs to it.
    ts = jnp.clip(ts, 0.0, np.nextafter(np.float32(1.0), np.float32(0.0)))[:, None]
    low, high = jnp.asarray(knots[:-1])[None], jnp.asarray(knots[1:])[None]
    values = ((ts >= low) & (ts < high)).astype(jnp.float32)
    for d in range(1, degree + 1):
        count = len(knots) - d - 1
        k = np.asarray(knots, np.float32)
        left, right = k[d : d + count] - k[:count], k[d + 1 :] - k[1 : count + 1]
        rise = np.divide(1.0, left, out=np.zeros_like(left), where=left > 0)
        fall = np.divide(1.0, right, out=np.zeros_like(right), where=right > 0)
        values = (ts - k[None, :count]) * rise[None] * values[:, :-1] + (
            k[None, d + 1 :] - ts
        ) * fall[None] * values[:, 1:]
    return values


def constant_coefficients(kind: str, size: int) -> Float[np.ndarray, " basis"]:
    """Coefficients of the function 1."""
    return np.ones(size) if kind == "bspline" else np.eye(size)[0]


class Basis(AbstractField):
    """W(t) = sum_k phi_k(t) C_k: a short series in depth."""

    coefficients: Any
    """A block with a leading basis axis on every array."""
    kind: str = eqx.field(static=True)
    size: int = eqx.field(static=True)

    def stack(self, ts: Depths) -> Any:
        phi = basis_functions(self.kind, ts, self.size)
        return jax.tree.map(lambda c: mixture(phi, c), self.coefficients)

    def at(self, t: Depth) -> Any:
        return at_one(self, t)


def init_basis(block: Any, *, kind: str, size: int, key: PRNGKeyArray) -> Basis:
    """A series that begins at a block of standard size."""
    constant = constant_coefficients(kind, size)
    groups, structure = jax.tree.flatten(block, is_leaf=is_weights)

    def expand(weights: AbstractWeights, key: PRNGKeyArray) -> AbstractWeights:
        def one(path: Any, value: Array) -> Array:
            c = jnp.asarray(constant, jnp.float32).reshape(-1, *[1] * value.ndim)
            whole = c * value[None]
            if not is_matrix(weights.roles[path[0].name]):
                return whole
            each = jax.random.fold_in(key, list(weights.roles).index(path[0].name))
            noise = jax.random.normal(each, whole.shape)
            return whole + 0.5 * size**-0.5 * rms(value) * noise

        return jax.tree_util.tree_map_with_path(one, weights)

    keys = jax.random.split(key, len(groups))
    made = [expand(group, each) for group, each in zip(groups, keys, strict=True)]
    return Basis(jax.tree.unflatten(structure, made), kind, size)


@FIELDS.register("basis")
def make_basis(make_block: MakeBlock, config: ModelConfig, key: PRNGKeyArray) -> Basis:
    key_block, key = jax.random.split(key)
    return init_basis(make_block(key_block), kind=config.basis, size=config.num_basis, key=key)
