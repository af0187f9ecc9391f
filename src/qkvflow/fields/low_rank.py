"""A shared base plus a low-rank term per layer (relaxed recursive transformers, Bae et al. 2024).

    W(t) = W_base + down(t) up(t)

Each layer has its own factors, at the grid points (i + 1) / N; between them the factors are
interpolated linearly. Vectors (biases, norms, state space diagonals) are small and each layer has
its own. `up` starts at 0, so that the field starts as the shared block.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from qkvflow.blocks.base import AbstractWeights, is_matrix, is_weights
from qkvflow.fields.base import AbstractField, Depth, Depths, MakeBlock, at_one, repeat
from qkvflow.fields.parts.mixture import mixture
from qkvflow.fields.parts.time import hats
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.registry import FIELDS


class LowRankWeights(eqx.Module):
    """One group: the base, with per-layer arrays for its vectors, and factors for its matrices."""

    base: AbstractWeights
    factors: dict[str, tuple[Float[Array, "layers d_in rank"], Float[Array, "layers rank d_out"]]]

    def __call__(self, weights: Float[Array, "depth layers"]) -> AbstractWeights:
        made = {}
        for name in self.base.roles:
            if (value := getattr(self.base, name)) is None:
                continue
            if name in self.factors:
                down, up = (mixture(weights, each) for each in self.factors[name])
                made[name] = repeat(value, len(weights)) + down @ up
            else:
                made[name] = mixture(weights, value)
        return dataclasses.replace(self.base, **made)


class LowRank(AbstractField):
    """A shared base and a low-rank term of its own for each layer."""

    groups: Any
    num_layers: int = eqx.field(static=True)

    def stack(self, ts: Depths) -> Any:
        weights = hats(ts, self.num_layers)
        return jax.tree.map(
            lambda each: each(weights),
            self.groups,
            is_leaf=lambda x: isinstance(x, LowRankWeights),
        )

    def at(self, t: Depth) -> Any:
        return at_one(self, t)


def init_low_rank(block: Any, *, num_layers: int, rank: int, key: PRNGKeyArray) -> LowRank:
    """The base is a block of standard size; the terms begin small."""
    groups, structure = jax.tree.flatten(block, is_leaf=is_weights)
    keys = jax.random.split(key, len(groups))
    made = [_init(each, num_layers, rank, k) for each, k in zip(groups, keys, strict=True)]
    return LowRank(jax.tree.unflatten(structure, made), num_layers)


def _init(
    weights: AbstractWeights, num_layers: int, rank: int, key: PRNGKeyArray
) -> LowRankWeights:
    factors, vectors = {}, {}
    for name, role in weights.roles.items():
        if (value := getattr(weights, name)) is None:
            continue
        if is_matrix(role):
            key, each = jax.random.split(key)
            d_in, d_out = value.shape
            down = jax.random.normal(each, (num_layers, d_in, rank)) * d_in**-0.5
            factors[name] = (down, jnp.zeros((num_layers, rank, d_out)))
        else:
            vectors[name] = jnp.broadcast_to(value, (num_layers, *value.shape))
    # Matrices stay single while vectors have a value per layer: not the shapes of one stack, so
    # they are put in place rather than passed to the constructor, which checks for that.
    names = list(vectors)
    if names:
        weights = eqx.tree_at(
            lambda w: [getattr(w, name) for name in names], weights, list(vectors.values())
        )
    return LowRankWeights(weights, factors)


@FIELDS.register("low-rank")
def make_low_rank(make_block: MakeBlock, config: ModelConfig, key: PRNGKeyArray) -> LowRank:
    key_block, key = jax.random.split(key)
    block = make_block(key_block)
    return init_low_rank(block, num_layers=config.layers, rank=config.rank, key=key)
