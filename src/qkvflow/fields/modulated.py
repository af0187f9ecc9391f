"""Shared layers whose norms and branches are modulated by depth (LoopFormer, Jeddi et al. 2026).

    c = silu(W_2 silu(W_1 phi(t) + b_1) + b_2)
    x <- x + h a(c) f(norm(x) s(c)),   s(c) = s + c W_s,  a(c) = a + c W_a

for every branch, with vectors s and a. phi are the time features; with `time_features: step` they
are those of t and of the length dt of the step, as LoopFormer has them. A loop is
`layers_per_loop` layers, as in the field cycle. s, a begin at 1 and W_s, W_a at 0.

In LoopFormer's code t is the begin of a step and not its end, the embeddings of t and dt are added
(here one embedding reads both, of which that is a case), and a branch is scaled by a(c) alone: here
by the size h of the step as well, which is 1 at the trained number of steps, so that a(c) need only
learn what a longer step does beyond being longer.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from qkvflow.blocks.base import AbstractNorm, Block, Linear
from qkvflow.blocks.kernels.norm import ChannelScale
from qkvflow.fields.base import AbstractField, Depth, Depths, MakeBlock, at_one, repeat
from qkvflow.fields.cycle import make_cycle
from qkvflow.fields.parts.time import (
    AbstractTimeFeatures,
    TimeEmbedding,
    features_of,
    init_time_embedding,
)
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.registry import FIELDS


class Maps(eqx.Module):
    """Of c to every scale, in the order of `_norms`."""

    linears: tuple[Linear, ...]


class Modulated(AbstractField):
    features: AbstractTimeFeatures
    embedding: TimeEmbedding
    block: Block
    maps: Maps

    def stack(self, ts: Depths) -> Any:
        c = jax.nn.silu(self.embedding(self.features(ts)))
        block = repeat(self.block, ts.shape[0])
        norms: list[Any] = _norms(block)
        scales = [norm.scale + each(c) for norm, each in zip(norms, self.maps.linears, strict=True)]
        return eqx.tree_at(lambda block: [each.scale for each in _norms(block)], block, scales)

    def at(self, t: Depth) -> Any:
        return at_one(self, t)


def _norms(block: Block) -> list[Any]:
    """The norms of all branches; scales of their outputs count as such."""
    places = [(each.norm, each.after, each.outer) for each in block.branches]
    return [norm for place in places for norm in place if isinstance(norm, AbstractNorm)]


@FIELDS.register("modulated")
def make_modulated(make_block: MakeBlock, config: ModelConfig, key: PRNGKeyArray) -> Modulated:
    key_block, key_features, key = jax.random.split(key, 3)
    features = features_of(config, key_features)
    branches = [
        each
        if each.after is not None
        else dataclasses.replace(each, after=ChannelScale(jnp.ones(config.d_model)))
        for each in make_cycle(make_block, config, key_block).block.branches
    ]
    block, shape = Block(tuple(branches)), (config.d_time, config.d_model)
    return Modulated(
        features,
        init_time_embedding(features.size, config.d_time, key=key),
        block,
        Maps(tuple(Linear(jnp.zeros(shape), None) for _ in _norms(block))),
    )
