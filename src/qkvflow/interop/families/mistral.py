"""Mistral without its sliding window: Llama without biases, and written as that."""

from qkvflow.interop.families._llama import llama_family, read_llama, refuse_windows
from qkvflow.interop.families.base import Family, Settings
from qkvflow.zoo import ModelConfig
from qkvflow.zoo.registry import FAMILIES


def read(settings: Settings) -> ModelConfig:
    refuse_windows(settings, settings.get("sliding_window", 4096))
    return read_llama(settings, bias=False)


@FAMILIES.register("mistral")
def mistral() -> Family:
    return llama_family(read, None)
