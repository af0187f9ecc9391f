"""GPT-NeoX (Pythia): LayerNorm, biases, rotary positions on the first channels of each head, and
both branches from one state (`use_parallel_residual`), or one after another.

Queries, keys and values of a head lie together. A model without positions is one that rotates no
channels.
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
from qkvflow.interop.families.gpt2 import ACTIVATIONS
from qkvflow.zoo import ModelConfig
from qkvflow.zoo.registry import FAMILIES


def read(settings: Settings) -> ModelConfig:
    require(settings, "hidden_act", "gelu", *ACTIVATIONS)
    d_model = needed(settings, "hidden_size")
    parallel = settings.get("use_parallel_residual", True)
    return ModelConfig(
        **read_rotary(settings, theta="rotary_emb_base", part=settings.get("rotary_pct", 0.25)),
        composition="parallel" if parallel else "sequential",
        d_model=d_model,
        num_heads=needed(settings, "num_attention_heads"),
        num_steps=needed(settings, "num_hidden_layers"),
        context=needed(settings, "max_position_embeddings"),
        mlp_ratio=needed(settings, "intermediate_size") / d_model,
        activation=ACTIVATIONS[settings.get("hidden_act", "gelu")],
        norm_eps=settings.get("layer_norm_eps", 1e-5),
        attention_bias=settings.get("attention_bias", True),
        tied=settings.get("tie_word_embeddings", False),
        init_std=settings.get("initializer_range", 0.02),
        dropout=settings.get("hidden_dropout", 0.0),
        attention_dropout=settings.get("attention_dropout", 0.0),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    must_be(config, norm="layernorm", kv_heads=config.num_heads, qk_norm=False)
    must_be(config, d_head=config.d_model / config.num_heads)
    if config.positions == "learned":
        raise UserError("positions rope or none, not learned")
    return {
        "architectures": ["GPTNeoXForCausalLM"],
        "hidden_act": "gelu_new" if config.activation == "gelu_tanh" else "gelu",
        "use_parallel_residual": config.composition == "parallel",
        "hidden_size": config.d_model,
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_steps,
        "max_position_embeddings": config.context,
        "intermediate_size": config.d_hidden,
        "layer_norm_eps": config.norm_eps,
        "attention_bias": any(attention_biases(config)),
        "rotary_emb_base": config.rotary_base,
        "rotary_pct": config.rotary_fraction if config.positions == "rope" else 0.0,
        **write_rotary(config),
        "initializer_range": config.init_std,
        "hidden_dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
    }


def rows(config: ModelConfig, settings: Settings) -> list[Row]:
    table = [Row("embedding", ("embed_in.weight",))]
    norms = {
        "norm.block": "final_layer_norm",
        "branches.0.norm": "layers.{}.input_layernorm",
        "branches.1.norm": "layers.{}.post_attention_layernorm",
    }
    for ours, theirs in norms.items():
        table.append(Row(f"{ours}.scale", (f"{theirs}.weight",)))
        table.append(Row(f"{ours}.shift", (f"{theirs}.bias",)))
    linear = {
        "branches.0.mixer.qkv": "attention.query_key_value",
        "branches.0.mixer.out": "attention.dense",
        "branches.1.mixer.up": "mlp.dense_h_to_4h",
        "branches.1.mixer.down": "mlp.dense_4h_to_h",
    }
    for ours, theirs in linear.items():
        heads = config.num_heads if ours.endswith("qkv") else 0
        name = f"layers.{{}}.{theirs}"
        table.append(Row(f"{ours}.weight", (f"{name}.weight",), "transposed", heads=heads))
        if settings.get("attention_bias", True) or "mlp" in theirs:
            table.append(Row(f"{ours}.bias", (f"{name}.bias",), heads=heads))
    return table


@FAMILIES.register("gpt-neox")
def gpt_neox() -> Family:
    ignored = (".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq")
    heads = ("embed_out.weight", "lm_head.weight")
    return Family("attention+mlp", "gpt_neox.", read, rows, write, ignored, heads)
