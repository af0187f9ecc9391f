"""Llama (also SmolLM2): `standard-llama`, tied or not, with or without biases."""

from typing import Any

from qkvflow.interop.families._llama import llama_family, read_llama, write_llama
from qkvflow.interop.families.base import Family, Settings, attention_biases, must_be
from qkvflow.zoo import ModelConfig
from qkvflow.zoo.registry import FAMILIES


def read(settings: Settings) -> ModelConfig:
    return read_llama(
        settings,
        bias=settings.get("mlp_bias", False),
        attention_bias=settings.get("attention_bias", False),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    must_be(config, qk_norm=False)
    bias, out_bias = attention_biases(config)
    if bias != out_bias:
        must_be(config, attention_out_bias=bias)
    return {
        **write_llama(config, "LlamaForCausalLM"),
        "mlp_bias": config.bias,
        "attention_bias": bias,
    }


@FAMILIES.register("llama")
def llama() -> Family:
    return llama_family(read, write)
