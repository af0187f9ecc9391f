"""Qwen3: Llama with norms on the queries and keys of each head."""

from typing import Any

from qkvflow.interop.families._llama import llama_family, read_llama, refuse_windows, write_llama
from qkvflow.interop.families.base import Family, Settings, attention_biases, must_be
from qkvflow.interop.families.qwen2 import window
from qkvflow.zoo import ModelConfig
from qkvflow.zoo.registry import FAMILIES


def read(settings: Settings) -> ModelConfig:
    refuse_windows(settings, window(settings))
    return read_llama(
        {"head_dim": 128, **settings},
        bias=False,
        attention_bias=settings.get("attention_bias", False),
        qk_norm=True,
    )


def write(config: ModelConfig) -> dict[str, Any]:
    bias, _ = attention_biases(config)
    must_be(config, bias=False, qk_norm=True)
    if config.attention_out_bias is not None:
        must_be(config, attention_out_bias=bias)
    settings = write_llama(config, "Qwen3ForCausalLM")
    return {**settings, "attention_bias": bias, "use_sliding_window": False}


@FAMILIES.register("qwen3")
def qwen3() -> Family:
    return llama_family(read, write)
