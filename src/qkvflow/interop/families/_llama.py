"""What Llama, Mistral and Qwen have in common: RMSNorm, SwiGLU, rotary positions, grouped-query
heads of any size.

Linear layers are stored `out in`; queries, keys and values apart, in the half-split rotary
convention that is ours too.
"""

from typing import Any

from qkvflow.errors import UserError
from qkvflow.interop.families._rotary import read_rotary, write_rotary
from qkvflow.interop.families.base import (
    Family,
    Row,
    Settings,
    attention_biases,
    must_be,
    needed,
    require,
)
from qkvflow.zoo import ModelConfig


def read_llama(settings: Settings, **flavour: Any) -> ModelConfig:
    """`flavour` is where the families differ: biases, norms on queries and keys."""
    require(settings, "hidden_act", "silu", "swish")
    for where in (settings, settings.get("rope_parameters") or {}):
        require(where, "partial_rotary_factor", 1.0, None)
    d_model, num_heads = needed(settings, "hidden_size"), needed(settings, "num_attention_heads")
    head_dim = settings.get("head_dim")
    return ModelConfig(
        **{**read_rotary(settings), **flavour},
        block="attention+swiglu",
        norm="rmsnorm",
        d_model=d_model,
        num_heads=num_heads,
        head_dim=None if head_dim is None or head_dim * num_heads == d_model else head_dim,
        num_kv_heads=settings.get("num_key_value_heads"),
        num_steps=needed(settings, "num_hidden_layers"),
        context=settings.get("max_position_embeddings", 2048),
        mlp_ratio=needed(settings, "intermediate_size") / d_model,
        norm_eps=settings.get("rms_norm_eps", 1e-6),
        tied=settings.get("tie_word_embeddings", False),
        init_std=settings.get("initializer_range", 0.02),
        attention_dropout=settings.get("attention_dropout", 0.0),
    )


def refuse_windows(settings: Settings, window: Any) -> None:
    """Refuse attention to the last tokens alone, unless they are all there can be."""
    kinds = settings.get("layer_types") or []
    longest = settings.get("max_position_embeddings", 2048)
    if (window is not None and window < longest) or set(kinds) - {"full_attention"}:
        raise UserError(
            f"unsupported sliding_window {window or set(kinds)}; qkvflow has attention to the "
            "whole text only"
        )


def write_llama(config: ModelConfig, architecture: str) -> dict[str, Any]:
    must_be(config, norm="rmsnorm", positions="rope", dropout=0.0, composition="sequential")
    must_be(config, rotary_fraction=1.0)
    return {
        "architectures": [architecture],
        "hidden_act": "silu",
        "hidden_size": config.d_model,
        "intermediate_size": config.d_hidden,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.d_head,
        "num_hidden_layers": config.num_steps,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        **write_rotary(config),
        "attention_dropout": config.attention_dropout,
        "initializer_range": config.init_std,
    }


def rows(config: ModelConfig, settings: Settings) -> list[Row]:
    kv = config.d_head * config.kv_heads
    attention, mlp = "layers.{}.self_attn", "layers.{}.mlp"
    bias, out_bias = attention_biases(config)
    table = [
        Row("embedding", ("embed_tokens.weight",)),
        Row("norm.block.scale", ("norm.weight",)),
        Row("branches.0.norm.scale", ("layers.{}.input_layernorm.weight",)),
        Row("branches.1.norm.scale", ("layers.{}.post_attention_layernorm.weight",)),
    ]
    if config.qk_norm:
        table += [
            Row(f"branches.0.mixer.{each}_norm.scale", (f"{attention}.{each}_norm.weight",))
            for each in "qk"
        ]
    linear = [
        (
            "branches.0.mixer.qkv",
            tuple(f"{attention}.{each}_proj" for each in "qkv"),
            (config.d_head * config.num_heads, kv, kv),
            bias,
        ),
        ("branches.0.mixer.out", (f"{attention}.o_proj",), (), out_bias),
    ]
    linear += [
        (f"branches.1.mixer.{each}", (f"{mlp}.{each}_proj",), (), config.bias)
        for each in ("gate", "up", "down")
    ]
    for ours, theirs, sizes, has_bias in linear:
        weights = tuple(f"{each}.weight" for each in theirs)
        table.append(Row(f"{ours}.weight", weights, "transposed", sizes))
        if has_bias:
            biases = tuple(f"{each}.bias" for each in theirs)
            table.append(Row(f"{ours}.bias", biases, sizes=sizes))
    return table


def llama_family(read: Any, write: Any) -> Family:
    return Family("attention+swiglu", "model.", read, rows, write, (".rotary_emb.inv_freq",))
