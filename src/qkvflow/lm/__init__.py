"""The language model that fields, blocks and schemes make together."""

from qkvflow.lm.accounting import (
    Flops,
    Parameters,
    count_flops,
    count_parameters,
    weights_in_effect,
)
from qkvflow.lm.model import LanguageModel, loss, token_losses

__all__ = [
    "Flops",
    "LanguageModel",
    "Parameters",
    "count_flops",
    "count_parameters",
    "loss",
    "token_losses",
    "weights_in_effect",
]
