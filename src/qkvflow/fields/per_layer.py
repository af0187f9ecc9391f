"""Weights of their own for every layer: a standard transformer.

Layer i sits at the grid point t_i = (i + 1) / N. On that grid the field returns the layers as
they are. Anywhere else it interpolates linearly between the two neighbouring layers'
weights, and before the first grid point it holds the first layer's. That makes a change of
depth possible; nothing in training asks for the weights in between to mean anything.

The layers are fields themselves, so that any field can be stacked: with `Shared` inside, this is
the standard transformer; with `Hypernet` inside, a hypernetwork per layer.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from qkvflow.fields.base import AbstractField, Depth, Depths, MakeBlock
from qkvflow.fields.shared import Shared
from qkvflow.schemes.parts.grid import is_grid
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.registry import FIELDS


class PerLayer(AbstractField):
    """Weights of their own for each layer, interpolated between them."""

    layers: AbstractField
    """One field whose arrays have a leading axis of `num_layers`."""
    num_layers: int = eqx.field(static=True)

    def at(self, t: Depth) -> Any:
        t = jnp.asarray(t, jnp.float32)
        position = jnp.clip(t * self.num_layers - 1.0, 0.0, self.num_layers - 1.0)
        below = jnp.clip(jnp.floor(position).astype(jnp.int32), 0, max(self.num_layers - 2, 0))
        above = jnp.minimum(below + 1, self.num_layers - 1)
        weight = position - below
        return jax.tree.map(
            lambda a, b: (1.0 - weight) * a + weight * b,
            self._layer(below).at(t),
            self._layer(above).at(t),
        )

    def _layer(self, index: Any) -> AbstractField:
        arrays, rest = eqx.partition(self.layers, eqx.is_array)
        return eqx.combine(jax.tree.map(lambda leaf: leaf[index], arrays), rest)

    def stack(self, ts: Depths) -> Any:
        if is_grid(ts, self.num_layers):
            return eqx.filter_vmap(lambda layer, t: layer.at(t))(self.layers, jnp.asarray(ts))
        return jax.vmap(self.at)(jnp.asarray(ts))


def stack_layers(layers: list[AbstractField]) -> PerLayer:
    """A per-layer field of the given fields, which must be alike but for their arrays."""
    arrays = [eqx.filter(layer, eqx.is_array) for layer in layers]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays)
    rest = eqx.filter(layers[0], eqx.is_array, inverse=True)
    return PerLayer(eqx.combine(stacked, rest), len(layers))


@FIELDS.register("per-layer")
def make_per_layer(make_block: MakeBlock, config: ModelConfig, key: PRNGKeyArray) -> PerLayer:
    keys = jax.random.split(key, config.layers)
    return PerLayer(eqx.filter_vmap(lambda each: Shared(make_block(each)))(keys), config.layers)
