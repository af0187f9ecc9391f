"""A model as a stack of ordinary layers: on its own grid that is what it is, whatever its field.

The weights in effect of every step are written out, steps of length h become whole ones by folding
h into the matrices (and biases) that write to the residual stream, and the segments are joined.
Logits are the same.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from qkvflow.blocks.base import AbstractWeights, Block, is_weights
from qkvflow.errors import UserError
from qkvflow.fields import PerLayer, Shared
from qkvflow.injections import NoInjection
from qkvflow.lm import LanguageModel, Segment
from qkvflow.schemes import Parallel, Sequential, make_scheme
from qkvflow.zoo import ModelConfig


def unrolled(model: LanguageModel, config: ModelConfig) -> tuple[LanguageModel, ModelConfig]:
    """The same model with weights of its own for every layer, and residual steps; `config` is the
    model's. What no such stack can do is refused."""
    unit = _unit(config.mixers)
    kinds = {type(each.scheme) for each in model.segments}
    if kinds not in ({Sequential}, {Parallel}):
        names = " and ".join(sorted(each.__name__ for each in kinds))
        raise UserError(
            f"steps of {names} are no stack of layers: only residual and euler steps are, all of "
            "one composition; choose such a --scheme"
        )
    if not isinstance(model.injection, NoInjection) or model.core_init != "input":
        raise UserError(
            "no stack of layers has an injection, or a core that does not begin from the state "
            f"before it; this model has injection {config.injection} and core_init "
            f"{config.core_init}"
        )
    if model.scale_embedding or model.value_residual:
        raise UserError("no stack of layers here has scale_embedding or value_residual")
    if config.final_norm == "none":
        raise UserError("every stack of layers here has a final norm; this model has none")
    layers = [_layers(each, len(unit)) for each in model.segments]
    stack = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *layers)
    depth = len(jax.tree.leaves(stack)[0])
    composition = "parallel" if kinds == {Parallel} else "sequential"
    plain = dataclasses.replace(
        config,
        field="per-layer",
        block="+".join(unit),
        scheme="residual",
        composition=composition,
        num_steps=depth,
        horizon=None,
        frozen_time=None,
        num_layers=None,
        prelude=0,
        coda=0,
        injection="none",
        core_init="input",
        depth_dial="refine",
        lora="none",
        final_norm="plain",
        residual_scale=None,
        exit_gate=False,
    )
    same = dataclasses.replace(
        model,
        field=PerLayer(Shared(stack), depth),
        norm=Shared(model.norm.at(1.0)),
        scheme=make_scheme("residual", composition=composition),
        num_steps=depth,
        horizon=float(depth),
        prelude=(),
        coda=(),
        depth_dial="refine",
        exit_gate=None,
    )
    return same, plain


def _unit(mixers: tuple[str, ...]) -> tuple[str, ...]:
    """The shortest part that the branches are repetitions of."""
    sizes = (n for n in range(1, len(mixers) + 1) if len(mixers) % n == 0)
    return next(mixers[:n] for n in sizes if mixers[:n] * (len(mixers) // n) == mixers)


def _layers(segment: Segment, branches: int) -> Block:
    """The layers of all steps of a segment, of so many branches each, along the leading axis."""
    (blocks,) = segment.stacks()
    others = [each.norm is None or each.after or each.outer for each in blocks.branches]
    if any(others) or segment.norm is not None:
        raise UserError(
            "stacks of layers here have one norm before every branch and no other; this model has "
            "norms elsewhere (norm_placement, loop_norm, coda_norm), or steps that are no layers"
        )
    blocks = jax.tree.map(
        lambda each: _scaled(each, segment.horizon / segment.num_steps), blocks, is_leaf=is_weights
    )
    if isinstance(segment.scheme, Parallel) and len(blocks.branches) != branches:
        raise UserError(
            f"{len(blocks.branches)} branches from one state are no layer of {branches}; train "
            "with --model.composition sequential"
        )
    parts = [
        Block(blocks.branches[first : first + branches])
        for first in range(0, len(blocks.branches), branches)
    ]
    # Layer l of step i is the (i L + l)-th.
    return jax.tree.map(
        lambda *leaves: jnp.stack(leaves, 1).reshape(-1, *leaves[0].shape[1:]), *parts
    )


def _scaled(weights: Any, size: float) -> Any:
    """With its increment `size` times as large."""
    if not isinstance(weights, AbstractWeights) or "out_proj" not in weights.roles.values():
        return weights
    return jax.tree.map(lambda leaf: size * leaf, weights)
