"""A hypernetwork of its own for every layer.

The baseline whose parameters the time-indexed extension (zaphrode/qkvflow) published; it exists to
reproduce that number.
"""

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from qkvflow.fields.base import MakeBlock
from qkvflow.fields.hypernet import make_hypernet
from qkvflow.fields.per_layer import PerLayer
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.registry import FIELDS


@FIELDS.register("per-layer-hypernet")
def make_per_layer_hypernet(
    make_block: MakeBlock, config: ModelConfig, key: PRNGKeyArray
) -> PerLayer:
    keys = jax.random.split(key, config.layers)
    layers = eqx.filter_vmap(lambda each: make_hypernet(make_block, config, each))(keys)
    return PerLayer(layers, config.layers)
