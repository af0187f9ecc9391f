"""Weights from and to the checkpoints of Hugging Face `transformers`, without PyTorch.

Add a family: a file in `families` with its settings both ways and its table of tensors, registered
with `@FAMILIES.register(name)`.
"""

from qkvflow.interop.huggingface import (
    config_from_huggingface,
    from_huggingface,
    to_huggingface,
)
from qkvflow.interop.unrolled import unrolled
from qkvflow.zoo.registry import FAMILIES

__all__ = [
    "FAMILIES",
    "config_from_huggingface",
    "from_huggingface",
    "to_huggingface",
    "unrolled",
]
