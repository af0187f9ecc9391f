"""Fields fitted to trained layers, each in closed form (gates: see `gating`).

    shared    W(t) = W_base
    low-rank  W_i  = W_base + down_i up_i, truncated SVD of W_i - W_base: the nearest of its rank
    basis     W(t) = sum_k phi_k(t) C_k, least squares over the layers' depths

A shared base stands for several layers (Bae et al. 2024, relaxed recursive transformers): their
`average`, the `lower` ones themselves, or layers taken `stepwise`, at equal distances from the
first to the last. With L distinct layers in a loop, layer i is tied to layers i + L, i + 2L, ...
Everything is computed in float64.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from qkvflow.blocks.base import AbstractWeights, Block, is_weights
from qkvflow.errors import unknown
from qkvflow.fields import Basis, LowRank
from qkvflow.fields.base import take
from qkvflow.fields.basis import basis_functions
from qkvflow.fields.low_rank import LowRankWeights
from qkvflow.schemes import grid

BASES = ("average", "stepwise", "lower")


def tied(values: np.ndarray, count: int, base: str) -> np.ndarray:
    """`count` values that stand for those of all layers, repeated one after another."""
    layers = len(values)
    if base == "average":
        return np.stack([values[first::count].mean(axis=0) for first in range(count)])
    if base == "lower":
        return values[:count]
    if base == "stepwise":
        # One alone is the middle one.
        places = np.linspace(0, layers - 1, count) if count > 1 else np.array([(layers - 1) / 2])
        return values[np.floor(places + 0.5).astype(int)]
    raise unknown("shared base", base, BASES)


def tied_blocks(layers: Block, count: int, base: str) -> list[Block]:
    """`count` blocks for a stack of layers."""
    stacked = jax.tree.map(lambda leaf: tied(_float64(leaf), count, base), layers)
    return [jax.tree.map(_array, take(stacked, index)) for index in range(count)]


def fit_low_rank(layers: Block, fresh: LowRank, rank: int, base: str) -> LowRank:
    groups, structure = jax.tree.flatten(layers, is_leaf=is_weights)
    shapes = jax.tree.leaves(fresh.groups, is_leaf=lambda x: isinstance(x, LowRankWeights))
    made = [_low_rank(group, like, rank, base) for group, like in zip(groups, shapes, strict=True)]
    return LowRank(jax.tree.unflatten(structure, made), fresh.num_layers)


def _low_rank(group: AbstractWeights, like: LowRankWeights, rank: int, base: str) -> LowRankWeights:
    arrays, factors = {}, {}
    for name in group.roles:
        if getattr(group, name) is None:
            continue
        values = _float64(getattr(group, name))
        if name in like.factors:
            [shared] = tied(values, 1, base)
            factors[name] = truncated(values - shared, rank)
            values = shared
        arrays[name] = _array(values)
    return LowRankWeights(replaced(like.base, arrays), factors)


def truncated(matrices: np.ndarray, rank: int) -> tuple[jax.Array, jax.Array]:
    """Two factors of each matrix whose product is the nearest of that rank, sized alike."""
    left, values, right = np.linalg.svd(matrices, full_matrices=False)
    kept = min(rank, values.shape[-1])
    roots = np.sqrt(values[..., :kept])
    down, up = left[..., :kept] * roots[..., None, :], roots[..., None] * right[..., :kept, :]
    missing = rank - kept
    down = np.pad(down, ((0, 0), (0, 0), (0, missing)))
    return _array(down), _array(np.pad(up, ((0, 0), (0, missing), (0, 0))))


def fit_basis(layers: Block, fresh: Basis) -> Basis:
    num_layers = jax.tree.leaves(layers)[0].shape[0]
    functions = _float64(basis_functions(fresh.kind, grid(num_layers), fresh.size))

    def fit(leaf: Any) -> jax.Array:
        return _array(least_squares(functions, _float64(leaf)))

    return dataclasses.replace(fresh, coefficients=jax.tree.map(fit, layers))


def least_squares(functions: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Coefficients C of least norm that make sum_k functions_ik C_k nearest to values_i."""
    flat = values.reshape(len(values), -1)
    found = np.linalg.lstsq(functions, flat, rcond=1e-7)[0]
    return found.reshape(functions.shape[1], *values.shape[1:])


def replaced(weights: Any, arrays: dict[str, Any]) -> Any:
    """The group with other arrays; their shapes need not be those of one stack."""
    names = list(arrays)
    return eqx.tree_at(
        lambda w: [getattr(w, name) for name in names], weights, [arrays[n] for n in names]
    )


def _float64(leaf: Any) -> np.ndarray:
    return np.asarray(leaf, np.float64)


def _array(values: np.ndarray) -> jax.Array:
    return jnp.asarray(values, jnp.float32)
