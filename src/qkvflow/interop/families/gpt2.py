"""GPT-2: `standard`. Linear layers are stored `in out` (Conv1D), with q, k and v in one.

GPT-2 has separate rates of dropout on the embedding and on increments; here they are one, that of
the increments.
"""

from typing import Any

from qkvflow.interop.families.base import Family, Row, Settings, must_be, needed, require
from qkvflow.zoo import ModelConfig
from qkvflow.zoo.registry import FAMILIES

ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
"""Theirs to ours."""


def read(settings: Settings) -> ModelConfig:
    require(settings, "activation_function", *ACTIVATIONS)
    require(settings, "scale_attn_weights", True)
    require(settings, "scale_attn_by_inverse_layer_idx", False)
    require(settings, "add_cross_attention", False)
    d_model = needed(settings, "n_embd")
    inner = 4 * d_model if settings.get("n_inner") is None else needed(settings, "n_inner")
    return ModelConfig(
        d_model=d_model,
        num_heads=needed(settings, "n_head"),
        num_steps=needed(settings, "n_layer"),
        context=needed(settings, "n_positions"),
        mlp_ratio=inner / d_model,
        activation=ACTIVATIONS[settings.get("activation_function", "gelu_new")],
        norm_eps=settings.get("layer_norm_epsilon", 1e-5),
        tied=settings.get("tie_word_embeddings", True),
        init_std=settings.get("initializer_range", 0.02),
        dropout=settings.get("resid_pdrop", 0.1),
        attention_dropout=settings.get("attn_pdrop", 0.1),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    must_be(config, norm="layernorm", positions="learned", composition="sequential")
    must_be(config, kv_heads=config.num_heads, d_head=config.d_model / config.num_heads)
    must_be(config, qk_norm=False)
    return {
        "architectures": ["GPT2LMHeadModel"],
        "activation_function": "gelu_new" if config.activation == "gelu_tanh" else "gelu",
        "n_embd": config.d_model,
        "n_head": config.num_heads,
        "n_layer": config.num_steps,
        "n_positions": config.context,
        "n_inner": config.d_hidden,
        "layer_norm_epsilon": config.norm_eps,
        "initializer_range": config.init_std,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
    }


def rows(config: ModelConfig, settings: Settings) -> list[Row]:
    pairs = {
        "branches.0.norm": "ln_1",
        "branches.0.mixer.qkv": "attn.c_attn",
        "branches.0.mixer.out": "attn.c_proj",
        "branches.1.norm": "ln_2",
        "branches.1.mixer.up": "mlp.c_fc",
        "branches.1.mixer.down": "mlp.c_proj",
    }
    table = [
        Row("embedding", ("wte.weight",)),
        Row("positions", ("wpe.weight",)),
        Row("norm.block.scale", ("ln_f.weight",)),
        Row("norm.block.shift", ("ln_f.bias",)),
    ]
    for ours, theirs in pairs.items():
        weight, bias = ("scale", "shift") if "norm" in ours else ("weight", "bias")
        table.append(Row(f"{ours}.{weight}", (f"h.{{}}.{theirs}.weight",)))
        table.append(Row(f"{ours}.{bias}", (f"h.{{}}.{theirs}.bias",)))
    return table


@FAMILIES.register("gpt2")
def gpt2() -> Family:
    ignored = (".attn.bias", ".attn.masked_bias")
    return Family("attention+mlp", "transformer.", read, rows, write, ignored)
