"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values alone."""

from typing import Any

from qkvflow.errors import UserError
from qkvflow.interop.families._llama import llama_family, read_llama, refuse_windows, write_llama
from qkvflow.interop.families.base import Family, Settings, attention_biases, must_be
from qkvflow.zoo import ModelConfig
from qkvflow.zoo.registry import FAMILIES


def window(settings: Settings) -> Any:
    used = settings.get("use_sliding_window", False)
    return settings.get("sliding_window", 4096) if used else None


def read(settings: Settings) -> ModelConfig:
    refuse_windows(settings, window(settings))
    return read_llama(settings, bias=False, attention_bias=True, attention_out_bias=False)


def write(config: ModelConfig) -> dict[str, Any]:
    must_be(config, bias=False, qk_norm=False, d_head=config.d_model / config.num_heads)
    if attention_biases(config) != (True, False):
        raise UserError("attention_bias True and attention_out_bias False")
    return {**write_llama(config, "Qwen2ForCausalLM"), "use_sliding_window": False}


@FAMILIES.register("qwen2")
def qwen2() -> Family:
    return llama_family(read, write)
