"""Weights from and to the checkpoints of Hugging Face `transformers`, without PyTorch.

Add a family: a file here with a `Family` (its settings both ways and its table of tensors), and
an entry in `FAMILIES`.
"""

from qkvflow.interop.huggingface import (
    FAMILIES,
    config_from_huggingface,
    from_huggingface,
    to_huggingface,
)

__all__ = ["FAMILIES", "config_from_huggingface", "from_huggingface", "to_huggingface"]
