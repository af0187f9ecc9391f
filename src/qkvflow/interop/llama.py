"""Llama: `standard-llama`, with grouped-query heads, tied or not, with or without biases.

Linear layers are stored `out in`; queries, keys and values apart, in the half-split rotary
convention that is ours too. Scaled rotary frequencies are refused.
"""

from typing import Any

from qkvflow.errors import UserError
from qkvflow.interop.family import Family, Row, Settings, must_be, needed, require
from qkvflow.zoo import ModelConfig


def read(settings: Settings) -> ModelConfig:
    require(settings, "hidden_act", "silu", "swish")
    d_model, num_heads = needed(settings, "hidden_size"), needed(settings, "num_attention_heads")
    if (d_head := settings.get("head_dim") or d_model // num_heads) * num_heads != d_model:
        raise UserError(
            f"unsupported head_dim {d_head}; qkvflow can load hidden_size / num_attention_heads "
            f"= {d_model // num_heads} only"
        )
    return ModelConfig(
        block="attention+swiglu",
        norm="rmsnorm",
        positions="rope",
        d_model=d_model,
        num_heads=num_heads,
        num_kv_heads=settings.get("num_key_value_heads"),
        num_steps=needed(settings, "num_hidden_layers"),
        context=settings.get("max_position_embeddings", 2048),
        mlp_ratio=needed(settings, "intermediate_size") / d_model,
        norm_eps=settings.get("rms_norm_eps", 1e-6),
        rotary_base=_rotary_base(settings),
        bias=settings.get("mlp_bias", False),
        attention_bias=settings.get("attention_bias", False),
        tied=settings.get("tie_word_embeddings", False),
        init_std=settings.get("initializer_range", 0.02),
        attention_dropout=settings.get("attention_dropout", 0.0),
    )


def _rotary_base(settings: Settings) -> float:
    """From `rope_parameters`, or from `rope_theta` and `rope_scaling` of older versions."""
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UserError(
            f"unsupported rotary scaling {dict(rope)}; qkvflow can load rope_type default only"
        )
    return float(rope.get("rope_theta", settings.get("rope_theta", 10000.0)))


def write(config: ModelConfig) -> dict[str, Any]:
    must_be(config, "Llama", norm="rmsnorm", positions="rope", dropout=0.0)
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": config.d_model,
        "intermediate_size": config.d_hidden,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.kv_heads,
        "num_hidden_layers": config.num_steps,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rotary_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
        "mlp_bias": config.bias,
        "attention_bias": config.bias if config.attention_bias is None else config.attention_bias,
        "attention_dropout": config.attention_dropout,
        "initializer_range": config.init_std,
    }


def rows(config: ModelConfig, settings: Settings) -> list[Row]:
    d_head = config.d_model // config.num_heads
    sizes = (config.d_model, d_head * config.kv_heads, d_head * config.kv_heads)
    attention, mlp = "layers.{}.self_attn", "layers.{}.mlp"
    qkv = tuple(f"{attention}.{each}_proj" for each in "qkv")
    table = [
        Row("embedding", ("embed_tokens.weight",)),
        Row("norm.block.scale", ("norm.weight",)),
        Row("branches.0.norm.scale", ("layers.{}.input_layernorm.weight",)),
        Row("branches.1.norm.scale", ("layers.{}.post_attention_layernorm.weight",)),
    ]
    linear = [
        ("branches.0.mixer.qkv", qkv, sizes, settings.get("attention_bias", False)),
        ("branches.0.mixer.out", (f"{attention}.o_proj",), (), settings.get("attention_bias")),
    ]
    linear += [
        (f"branches.1.mixer.{each}", (f"{mlp}.{each}_proj",), (), settings.get("mlp_bias"))
        for each in ("gate", "up", "down")
    ]
    for ours, theirs, sizes, bias in linear:
        weights = tuple(f"{each}.weight" for each in theirs)
        table.append(Row(f"{ours}.weight", weights, "transposed", sizes))
        if bias:
            biases = tuple(f"{each}.bias" for each in theirs)
            table.append(Row(f"{ours}.bias", biases, sizes=sizes))
    return table


LLAMA = Family("model.", (".rotary_emb.inv_freq",), read, write, rows)
