"""Weights generated from depth by a network each (Tong et al. 2025, ICLR).

For every layer of the block (linear or norm) a time embedding of its own and a linear map:

    e(t) = W_2 silu(W_1 features(t) + b_1) + b_2,     W(t) = offset + sum_k e_k(t) map_k

Matrices have an offset; biases and norm scales have none, and a generated scale is added to 1,
as in the time-indexed extension (zaphrode/qkvflow).

`stack` embeds all depths first and makes each weight of all depths in one product, so a
map, by far the largest array there is, is read once in a forward pass and not once per layer.

Initialisation. A map of E x (in x out) numbers drawn like any other linear layer gives weights that
are far too large or too small, and so does an embedding whose size was not considered. Here
the offset is the standard initialisation of the weight, shrunk a little, and the map is scaled,
with the root mean square of e(t) measured over the grid, so that the time-dependent part has
`SHARE` of the variance. At every t the weight then has the size it has in a standard
transformer. Maps of biases and norms start at 0.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from qkvflow.blocks.base import AbstractWeights, Role, is_matrix, is_weights
from qkvflow.fields.base import AbstractField, Depth, Depths, MakeBlock, at_one, repeat, rms
from qkvflow.fields.parts.mixture import mixture
from qkvflow.fields.parts.time import (
    AbstractTimeFeatures,
    TimeEmbedding,
    features_of,
    init_time_embedding,
)
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.registry import FIELDS

SHARE = 0.25
"""Of a generated matrix's variance at initialisation, the part that varies with depth."""

WITHOUT_OFFSET: tuple[Role, ...] = ("bias", "scale")


class Generator(eqx.Module):
    """Makes one group of weights from features of t."""

    embedding: TimeEmbedding
    maps: AbstractWeights
    """The group with a leading embedding axis on every array."""
    offsets: AbstractWeights
    """The group with None for arrays that have no offset."""

    def __call__(self, features: Float[Array, "depth features"]) -> AbstractWeights:
        e = self.embedding(features)
        made = {}
        for name, role in self.maps.roles.items():
            if (each := getattr(self.maps, name)) is None:
                continue
            # The axes of the weight stay apart, so that they may be divided over devices.
            value = mixture(e, each)
            if role == "scale":
                value = 1.0 + value
            elif (offset := getattr(self.offsets, name)) is not None:
                value = value + repeat(offset, len(e))
            made[name] = value
        return dataclasses.replace(self.maps, **made)


def is_generator(x: Any) -> bool:
    return isinstance(x, Generator)


class Hypernet(AbstractField):
    """A block in which generators stand for groups of weights. Plain groups are shared."""

    features: AbstractTimeFeatures
    generators: Any

    def stack(self, ts: Depths) -> Any:
        features = self.features(ts)
        return jax.tree.map(
            lambda each: each(features) if is_generator(each) else repeat(each, ts.shape[0]),
            self.generators,
            is_leaf=is_generator,
        )

    def at(self, t: Depth) -> Any:
        return at_one(self, t)


def init_hypernet(
    block: Any,
    features: AbstractTimeFeatures,
    *,
    d_time: int,
    select: Callable[[AbstractWeights], bool] = lambda weights: True,
    key: PRNGKeyArray,
) -> Hypernet:
    """A field whose block at every t is about the size of `block`, a standard initialisation.

    `select` says which groups are generated; the others are shared by all depths.
    """
    groups, structure = jax.tree.flatten(block, is_leaf=is_weights)
    keys = jax.random.split(key, len(groups))
    made = [
        _init_generator(group, features, d_time=d_time, key=each) if select(group) else group
        for group, each in zip(groups, keys, strict=True)
    ]
    return Hypernet(features, jax.tree.unflatten(structure, made))


def _init_generator(
    weights: AbstractWeights, features: AbstractTimeFeatures, *, d_time: int, key: PRNGKeyArray
) -> Generator:
    key_embedding, *keys = jax.random.split(key, 1 + len(weights.roles))
    embedding = init_time_embedding(features.size, d_time, key=key_embedding)
    size = rms(embedding(features(np.linspace(0.0, 1.0, 33, dtype=np.float32))))
    maps, offsets = {}, {}
    for each, (name, role) in zip(keys, weights.roles.items(), strict=True):
        if (value := getattr(weights, name)) is None:
            continue
        shape = (d_time, *value.shape)
        if role in WITHOUT_OFFSET:
            maps[name], offsets[name] = jnp.zeros(shape), None
            continue
        # Logarithms, gains and offsets vary by a tenth; matrices by a share of their size.
        varies = is_matrix(role) or role == "kernel"
        std = jnp.sqrt(SHARE) * rms(value) if varies else 0.1
        maps[name] = std / (size * d_time**0.5) * jax.random.normal(each, shape)
        offsets[name] = (1.0 - SHARE) ** 0.5 * value if varies else value
    return Generator(
        embedding, dataclasses.replace(weights, **maps), _replace_any(weights, offsets)
    )


def _replace_any(weights: AbstractWeights, values: dict[str, Array | None]) -> AbstractWeights:
    """`dataclasses.replace`, for values that an initialiser would not take."""
    names = list(values)
    return eqx.tree_at(
        lambda w: [getattr(w, name) for name in names],
        weights,
        [values[name] for name in names],
        is_leaf=lambda x: x is None,
    )


@FIELDS.register("hypernet")
def make_hypernet(make_block: MakeBlock, config: ModelConfig, key: PRNGKeyArray) -> Hypernet:
    key_block, key_features, key = jax.random.split(key, 3)
    features = features_of(config, key_features)
    return init_hypernet(make_block(key_block), features, d_time=config.d_time, key=key)
