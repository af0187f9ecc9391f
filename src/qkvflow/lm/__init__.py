"""The language model that fields, blocks and schemes make together."""

from qkvflow.lm.accounting import (
    Flops,
    Parameters,
    count_flops,
    count_parameters,
    weights_in_effect,
)
from qkvflow.lm.assembly import abstract, build, build_config
from qkvflow.lm.loss import loss, num_pieces, token_losses
from qkvflow.lm.model import LanguageModel
from qkvflow.lm.segments import Segment

__all__ = [
    "Flops",
    "LanguageModel",
    "Parameters",
    "Segment",
    "abstract",
    "build",
    "build_config",
    "count_flops",
    "count_parameters",
    "loss",
    "num_pieces",
    "token_losses",
    "weights_in_effect",
]
