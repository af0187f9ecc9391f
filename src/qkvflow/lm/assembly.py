"""From a configuration to a model: the one place where names become classes."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from qkvflow.blocks.attention import init_attention
from qkvflow.blocks.base import AbstractMixer, AbstractNorm, Block, Branch
from qkvflow.blocks.mlp import init_mlp, init_swiglu
from qkvflow.blocks.norm import init_norm
from qkvflow.blocks.selective_ssm import init_selective_ssm
from qkvflow.blocks.ssm import StateSpace, init_ssm
from qkvflow.errors import UserError, unknown
from qkvflow.fields import (
    AbstractField,
    FrozenTime,
    PerLayer,
    Shared,
    init_basis,
    init_gated,
    init_hypernet,
    init_lora,
    init_low_rank,
)
from qkvflow.fields.time import AbstractTimeFeatures, make_time_features
from qkvflow.lm.model import LanguageModel
from qkvflow.schemes import default_horizon, make_scheme
from qkvflow.zoo.config import ModelConfig, configure
from qkvflow.zoo.entries import entry

MakeBlock = Callable[[PRNGKeyArray], Any]
MakeField = Callable[[MakeBlock, ModelConfig, PRNGKeyArray], AbstractField]
MakeMixer = Callable[[ModelConfig, float, PRNGKeyArray], AbstractMixer]


def build(
    name: str, *, vocab_size: int, key: PRNGKeyArray, size: str = "small", **overrides: Any
) -> LanguageModel:
    """A model of the zoo with fresh weights; any field of `ModelConfig` can be overridden."""
    return build_config(configure(entry(name, size), overrides), vocab_size=vocab_size, key=key)


def build_config(config: ModelConfig, *, vocab_size: int, key: PRNGKeyArray) -> LanguageModel:
    if vocab_size < 1:
        raise UserError(f"vocab_size must be positive, not {vocab_size}")
    if config.field not in FIELDS:
        raise unknown("field", config.field, FIELDS)
    scheme = make_scheme(config.scheme, composition=config.composition, tolerance=config.tolerance)
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
    # Logits of a normalised state keep a standard deviation of 0.32 at any width, so that the
    # first loss is that of a uniform guess. At 256 wide this is the usual 0.02.
    std = 0.32 * config.d_model**-0.5
    shape = (vocab_size, config.d_model)
    positions = None
    if config.positions == "learned":
        positions = std * jax.random.normal(key_positions, (config.context, config.d_model))
    return LanguageModel(
        embedding=std * jax.random.normal(key_embed, shape),
        positions=positions,
        field=field,
        norm=_final_norm(config, key_norm),
        head=None if config.tied else std * jax.random.normal(key_head, shape[::-1]),
        scheme=scheme,
        num_steps=config.num_steps,
        horizon=_horizon(config),
        context=config.context,
        dropout=config.dropout,
        remat=config.remat,
        compute_dtype=config.compute_dtype,
    )


def _horizon(config: ModelConfig) -> float:
    if config.horizon is not None:
        return config.horizon
    return default_horizon(config.scheme, config.num_steps)


def _final_norm(config: ModelConfig, key: PRNGKeyArray) -> AbstractField:
    norm = init_norm(config.norm, config.d_model, bias=config.bias, eps=config.norm_eps)
    if config.final_norm == "plain":
        return Shared(norm)
    key_features, key = jax.random.split(key)
    return init_hypernet(norm, _features(config, key_features), d_time=config.d_time, key=key)


def _features(config: ModelConfig, key: PRNGKeyArray) -> AbstractTimeFeatures:
    return make_time_features(
        config.time_features,
        num_frequencies=config.num_frequencies,
        num_layers=config.layers,
        key=key,
    )


def init_block(config: ModelConfig, key: PRNGKeyArray) -> Block:
    """One block with the standard initialisation.

    Weights that write to the residual stream are scaled by 1 / sqrt(2 T), where T is the horizon:
    GPT-2's 1 / sqrt(2 N) for residual steps, and about 1 for Euler steps, which are small already.
    """
    out_scale = (2.0 * max(1.0, _horizon(config))) ** -0.5
    branches = []
    for name, each in zip(config.mixers, jax.random.split(key, len(config.mixers)), strict=True):
        norm = init_norm(config.norm, config.d_model, bias=config.bias, eps=config.norm_eps)
        branches.append(Branch(norm, MIXERS[name](config, out_scale, each), config.dropout))
    return Block(tuple(branches))


def _attention(config: ModelConfig, out_scale: float, key: PRNGKeyArray) -> AbstractMixer:
    return init_attention(
        config.d_model,
        num_heads=config.num_heads,
        num_kv_heads=config.kv_heads,
        bias=config.bias if config.attention_bias is None else config.attention_bias,
        rotary_base=config.rotary_base if config.positions == "rope" else None,
        dropout=config.attention_dropout,
        std=config.init_std,
        out_std=config.init_std * out_scale,
        key=key,
    )


def _mlp(config: ModelConfig, out_scale: float, key: PRNGKeyArray) -> AbstractMixer:
    init = init_swiglu if "swiglu" in config.mixers else init_mlp
    return init(
        config.d_model,
        config.d_hidden,
        bias=config.bias,
        std=config.init_std,
        out_std=config.init_std * out_scale,
        key=key,
    )


def _ssm(config: ModelConfig, out_scale: float, key: PRNGKeyArray) -> AbstractMixer:
    return init_ssm(config.d_model, config.d_state, out_scale=out_scale, key=key)


def _selective_ssm(config: ModelConfig, out_scale: float, key: PRNGKeyArray) -> AbstractMixer:
    return init_selective_ssm(
        config.d_model,
        d_state=config.d_state,
        expand=config.ssm_expand,
        head_dim=config.head_dim,
        groups=config.ssm_groups,
        conv_width=config.conv_width,
        std=config.init_std,
        out_std=config.init_std * out_scale,
        norm_eps=config.norm_eps,
        key=key,
    )


MIXERS: dict[str, MakeMixer] = {
    "attention": _attention,
    "mlp": _mlp,
    "swiglu": _mlp,
    "ssm": _ssm,
    "selective-ssm": _selective_ssm,
}


def _per_layer(make: MakeBlock, config: ModelConfig, key: PRNGKeyArray) -> AbstractField:
    keys = jax.random.split(key, config.layers)
    return PerLayer(eqx.filter_vmap(lambda each: Shared(make(each)))(keys), config.layers)


def _shared(make: MakeBlock, config: ModelConfig, key: PRNGKeyArray) -> AbstractField:
    return Shared(make(key))


def _gated(make: MakeBlock, config: ModelConfig, key: PRNGKeyArray) -> AbstractField:
    return _gated_over(make, config, key, (AbstractNorm,), config.gate)


def _gated_generated(make: MakeBlock, config: ModelConfig, key: PRNGKeyArray) -> AbstractField:
    """The documents' code for state spaces: generated from t, and gated by element besides."""
    return _gated_over(make, config, key, (AbstractNorm, StateSpace), "published")


def _gated_over(
    make: MakeBlock, config: ModelConfig, key: PRNGKeyArray, generate: tuple[type, ...], gate: str
) -> AbstractField:
    key_block, key_features, key = jax.random.split(key, 3)
    return init_gated(
        make(key_block),
        _features(config, key_features),
        d_time=config.d_time,
        gate=gate,
        activation=config.gate_activation,
        rank=config.gate_rank,
        generate=generate,
        key=key,
    )


def _hypernet(make: MakeBlock, config: ModelConfig, key: PRNGKeyArray) -> AbstractField:
    key_block, key_features, key = jax.random.split(key, 3)
    features = _features(config, key_features)
    return init_hypernet(make(key_block), features, d_time=config.d_time, key=key)


def _per_layer_hypernet(make: MakeBlock, config: ModelConfig, key: PRNGKeyArray) -> AbstractField:
    keys = jax.random.split(key, config.layers)
    layers = eqx.filter_vmap(lambda each: _hypernet(make, config, each))(keys)
    return PerLayer(layers, config.layers)


def _low_rank(make: MakeBlock, config: ModelConfig, key: PRNGKeyArray) -> AbstractField:
    key_block, key = jax.random.split(key)
    return init_low_rank(make(key_block), num_layers=config.layers, rank=config.rank, key=key)


def _basis(make: MakeBlock, config: ModelConfig, key: PRNGKeyArray) -> AbstractField:
    key_block, key = jax.random.split(key)
    return init_basis(make(key_block), kind=config.basis, size=config.num_basis, key=key)


FIELDS: dict[str, MakeField] = {
    "per-layer": _per_layer,
    "shared": _shared,
    "gated": _gated,
    "gated-generated": _gated_generated,
    "hypernet": _hypernet,
    "per-layer-hypernet": _per_layer_hypernet,
    "low-rank": _low_rank,
    "basis": _basis,
}
"""Add your own here: a function from a block initialiser, a configuration and a key to a field."""


def abstract(config: ModelConfig, *, vocab_size: int) -> LanguageModel:
    """The model's shapes without its arrays: for counting and planning at any size."""
    return eqx.filter_eval_shape(
        lambda key: build_config(config, vocab_size=vocab_size, key=key), jax.random.key(0)
    )


def abstract_model(config: ModelConfig, vocab_size: int) -> tuple[Any, Any]:
    """Shapes of the model's arrays, and the rest of it."""
    model = abstract(config, vocab_size=vocab_size)
    return eqx.partition(model, lambda x: isinstance(x, jax.ShapeDtypeStruct))


__all__ = ["FIELDS", "MIXERS", "abstract", "abstract_model", "build", "build_config", "init_block"]
