"""Several layers of their own, repeated: layer i has the weights of layer i mod L.

A step is one loop: the block at any depth is all L layers, one after another,

    x <- x + h f_l(x)   for every branch of layer 0, of layer 1, ... of layer L-1,

so N steps are N L layers, an injection enters once in a loop, and N may be any number. That is the
looped middle of a transformer, and the core of Geiping et al. 2025. Schemes that add up the
increments of a block (parallel composition, Runge-Kutta) take those of all L layers together.
"""

import dataclasses

import jax
from jaxtyping import PRNGKeyArray

from qkvflow.blocks.base import Block
from qkvflow.blocks.kernels.norm import init_norm
from qkvflow.fields.base import MakeBlock
from qkvflow.fields.shared import Shared
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.registry import FIELDS


def cycle(layers: list[Block]) -> Shared:
    """The field that runs these layers in every step."""
    return Shared(Block(tuple(branch for layer in layers for branch in layer.branches)))


@FIELDS.register("cycle")
def make_cycle(make_block: MakeBlock, config: ModelConfig, key: PRNGKeyArray) -> Shared:
    layers = [make_block(each) for each in jax.random.split(key, config.layers_per_loop)]
    if config.loop_norm:
        *others, last = layers[-1].branches
        norm = init_norm(config.norm, config.d_model, bias=config.bias, eps=config.norm_eps)
        layers[-1] = Block((*others, dataclasses.replace(last, outer=norm)))
    return cycle(layers)
