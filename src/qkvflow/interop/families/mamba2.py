"""Mamba-2: `mamba`. The channels of in_proj (z, x, B, C, delta) lie as ours do.

A convolution without bias becomes one with bias 0. A checkpoint does not say which length it
was trained on, and nothing in the model depends on it: `context` is the published 2048.
"""

import math
from typing import Any

from qkvflow.errors import UserError
from qkvflow.interop.families.base import Family, Row, Settings, must_be, needed, require
from qkvflow.zoo import ModelConfig
from qkvflow.zoo.registry import FAMILIES

CONTEXT = 2048


def read(settings: Settings) -> ModelConfig:
    require(settings, "hidden_act", "silu", "swish")
    require(settings, "use_bias", False)
    limit = [_number(each) for each in settings.get("time_step_limit", (0.0, math.inf))]
    if limit != [0.0, math.inf]:
        raise UserError(
            f"unsupported time_step_limit {limit}; qkvflow can load unlimited (0, inf) only"
        )
    d_model, expand = needed(settings, "hidden_size"), needed({"expand": 2, **settings}, "expand")
    heads, head_dim = needed(settings, "num_heads"), needed(settings, "head_dim")
    if heads * head_dim != expand * d_model:
        raise UserError(
            f"num_heads {heads} x head_dim {head_dim} is not expand {expand} x hidden_size "
            f"{d_model}; the configuration contradicts itself"
        )
    return ModelConfig(
        block="selective-ssm",
        norm="rmsnorm",
        positions="none",
        bias=False,
        d_model=d_model,
        num_steps=needed(settings, "num_hidden_layers"),
        context=CONTEXT,
        norm_eps=settings.get("layer_norm_epsilon", 1e-5),
        d_state=needed(settings, "state_size"),
        ssm_expand=expand,
        ssm_head_dim=head_dim,
        ssm_groups=needed(settings, "n_groups"),
        conv_width=settings.get("conv_kernel", 4),
        tied=settings.get("tie_word_embeddings", False),
    )


def _number(value: Any) -> float:
    """JSON has no infinity: it is stored as a name, alone or in an object."""
    return float(value["__float__"] if isinstance(value, dict) else value)


def write(config: ModelConfig) -> dict[str, Any]:
    must_be(config, norm="rmsnorm", positions="none", dropout=0.0, bias=False)
    return {
        "architectures": ["Mamba2ForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": config.d_model,
        "expand": config.ssm_expand,
        "num_heads": config.ssm_expand * config.d_model // config.d_ssm_head,
        "head_dim": config.d_ssm_head,
        "state_size": config.d_state,
        "n_groups": config.ssm_groups,
        "conv_kernel": config.conv_width,
        "use_conv_bias": True,
        "use_bias": False,
        "num_hidden_layers": config.num_steps,
        "layer_norm_epsilon": config.norm_eps,
    }


def rows(config: ModelConfig, settings: Settings) -> list[Row]:
    ours, theirs = "branches.0.mixer", "layers.{}.mixer"
    has_bias = settings.get("use_conv_bias", True)
    return [
        Row("embedding", ("embeddings.weight",)),
        Row("norm.block.scale", ("norm_f.weight",)),
        Row("branches.0.norm.scale", ("layers.{}.norm.weight",)),
        Row(f"{ours}.in_proj.weight", (f"{theirs}.in_proj.weight",), "transposed"),
        Row(f"{ours}.conv.kernel", (f"{theirs}.conv1d.weight",), "convolution"),
        Row(f"{ours}.conv.bias", (f"{theirs}.conv1d.bias",) if has_bias else ()),
        Row(f"{ours}.decay.log_a", (f"{theirs}.A_log",)),
        Row(f"{ours}.decay.d", (f"{theirs}.D",)),
        Row(f"{ours}.decay.delta_bias", (f"{theirs}.dt_bias",)),
        Row(f"{ours}.norm.scale", (f"{theirs}.norm.weight",)),
        Row(f"{ours}.out_proj.weight", (f"{theirs}.out_proj.weight",), "transposed"),
    ]


@FAMILIES.register("mamba2")
def mamba2() -> Family:
    return Family("selective-ssm", "backbone.", read, rows, write)
