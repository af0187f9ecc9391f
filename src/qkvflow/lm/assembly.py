"""From a configuration to a model: the one place where names become classes."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from qkvflow.blocks.base import AbstractNorm, Block, Branch, Linear, init_linear
from qkvflow.blocks.kernels.norm import NoNorm, init_norm
from qkvflow.compilation import shared
from qkvflow.errors import UserError
from qkvflow.fields import AbstractField, FrozenTime, PerLayer, Shared, init_hypernet, init_lora
from qkvflow.fields.parts.time import features_of, with_steps
from qkvflow.lm.model import LanguageModel
from qkvflow.lm.segments import Segment, stream_std
from qkvflow.schemes import check_injected, default_horizon, make_scheme
from qkvflow.zoo.config import ModelConfig, configure
from qkvflow.zoo.entries import entry
from qkvflow.zoo.registry import FIELDS, INJECTIONS, MIXERS, SCHEMES


def build(
    name: str, *, vocab_size: int, key: PRNGKeyArray, size: str = "small", **overrides: Any
) -> LanguageModel:
    """A model of the zoo with fresh weights; any field of `ModelConfig` can be overridden."""
    return build_config(configure(entry(name, size), overrides), vocab_size=vocab_size, key=key)


def build_config(config: ModelConfig, *, vocab_size: int, key: PRNGKeyArray) -> LanguageModel:
    """A model of this configuration with fresh weights."""
    if vocab_size < 1:
        raise UserError(f"vocab_size must be positive, not {vocab_size}")
    ratio = config.width_ratio or 1.0
    # Under mup what is summed over the width has the same size at any: see docs/tuning.md.
    config = dataclasses.replace(config, init_std=config.init_std * ratio**-0.5)
    scheme = make_scheme(config.scheme, composition=config.composition, tolerance=config.tolerance)
    check_injected(config.scheme, scheme, config.injection != "none")
    key_embed, key_positions, key_field, key_norm, key_head = jax.random.split(key, 5)
    field = FIELDS[config.field](lambda key: init_block(config, key), config, key_field)
    if config.frozen_time is not None:
        field = FrozenTime(field, config.frozen_time)
    if config.lora != "none":
        field = init_lora(
            field,
            patterns=config.lora,
            rank=config.lora_rank,
            num_knots=config.num_steps,
            key=jax.random.fold_in(key_field, 1),
        )
    std = stream_std(config.d_model) * ratio**0.5
    shape = (vocab_size, config.d_model)
    positions = None
    if config.positions == "learned":
        positions = std * jax.random.normal(key_positions, (config.context, config.d_model))
    return LanguageModel(
        embedding=std * jax.random.normal(key_embed, shape),
        positions=positions,
        field=with_steps(field, 1.0 / config.num_steps),
        norm=_final_norm(config, key_norm),
        head=None if config.tied else std * jax.random.normal(key_head, shape[::-1]),
        scheme=scheme,
        num_steps=config.num_steps,
        horizon=_horizon(config),
        context=config.context,
        dropout=config.dropout,
        remat=config.remat,
        compute_dtype=config.compute_dtype,
        prelude=_own_layers(config, config.prelude, jax.random.fold_in(key, 1)),
        coda=_own_layers(config, config.coda, jax.random.fold_in(key, 2), config.coda_norm),
        injection=INJECTIONS[config.injection](config, jax.random.fold_in(key, 3)),
        core_init=config.core_init,
        depth_dial=config.depth_dial,
        scale_embedding=config.scale_embedding,
        value_residual=config.value_residual,
        exit_gate=_exit_gate(config, jax.random.fold_in(key, 4)),
        logit_scale=1.0 / ratio,
    )


def _own_layers(
    config: ModelConfig, num_layers: int, key: PRNGKeyArray, norm: bool = False
) -> tuple[Segment, ...]:
    """Residual layers with weights of their own: a prelude or a coda."""
    if not num_layers:
        return ()
    keys = jax.random.split(key, num_layers)
    layers = eqx.filter_vmap(lambda each: Shared(init_block(config, each)))(keys)
    return (
        Segment(
            PerLayer(layers, num_layers),
            make_scheme("residual"),
            num_layers,
            float(num_layers),
            norm=_init_norm(config) if norm else None,
        ),
    )


def _exit_gate(config: ModelConfig, key: PRNGKeyArray) -> Linear | None:
    return (
        init_linear(config.d_model, 1, bias=True, std=0.02, key=key) if config.exit_gate else None
    )


def _horizon(config: ModelConfig) -> float:
    if config.horizon is not None:
        return config.horizon
    if config.residual_scale is not None:
        return config.residual_scale / config.loop_layers**0.5
    return default_horizon(config.scheme, config.num_steps)


def _final_norm(config: ModelConfig, key: PRNGKeyArray) -> AbstractField:
    norm = _init_norm(config) if config.final_norm != "none" else NoNorm()
    if config.final_norm != "time":
        return Shared(norm)
    key_features, key = jax.random.split(key)
    return init_hypernet(norm, features_of(config, key_features), d_time=config.d_time, key=key)


_PLACES = {
    "pre": ("norm",),
    "sandwich": ("norm", "after"),
    "post": ("outer",),
    "pre-post": ("norm", "outer"),
}
"""Which norms of a `Branch` there are."""


def _init_norm(config: ModelConfig) -> AbstractNorm:
    return init_norm(config.norm, config.d_model, bias=config.bias, eps=config.norm_eps)


def init_block(config: ModelConfig, key: PRNGKeyArray) -> Block:
    """One block with the standard initialisation.

    Weights that write to the residual stream are scaled by 1 / sqrt(2 T), where T is the horizon
    of all segments: GPT-2's 1 / sqrt(2 N) for residual steps, and about 1 for Euler steps, which
    are small already.
    """
    increments = config.prelude + _horizon(config) + config.coda
    out_scale = (2.0 * max(1.0, increments)) ** -0.5
    branches = []
    for name, each in zip(config.mixers, jax.random.split(key, len(config.mixers)), strict=True):
        mixer = MIXERS[name](config, out_scale, each)
        norms = {place: _init_norm(config) for place in _PLACES[config.norm_placement]}
        branches.append(Branch(norms.pop("norm", None), mixer, config.dropout, **norms))
    return Block(tuple(branches))


def abstract(config: ModelConfig, *, vocab_size: int) -> LanguageModel:
    """The model's shapes without its arrays: for counting and planning at any size."""
    # What a name stands for may change while a process lives.
    members = FIELDS[config.field], SCHEMES[config.scheme], INJECTIONS[config.injection]
    return _abstract(config, vocab_size, *members, *(MIXERS[name] for name in config.mixers))


@shared
def _abstract(config: ModelConfig, vocab_size: int, *members: Any) -> LanguageModel:
    """Once for equal ones: a run asks for it when it begins, makes its program and is loaded."""
    return eqx.filter_eval_shape(
        lambda key: build_config(config, vocab_size=vocab_size, key=key), jax.random.key(0)
    )


def abstract_model(config: ModelConfig, vocab_size: int) -> tuple[Any, Any]:
    """Shapes of the model's arrays, and the rest of it."""
    model = abstract(config, vocab_size=vocab_size)
    return eqx.partition(model, lambda x: isinstance(x, jax.ShapeDtypeStruct))
