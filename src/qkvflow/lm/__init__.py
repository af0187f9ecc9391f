"""The language model that fields, blocks and schemes make together."""

from qkvflow.lm.accounting import (
    Flops,
    Parameters,
    count_flops,
    count_parameters,
    weights_in_effect,
)
from qkvflow.lm.assembly import abstract, build, build_config
from qkvflow.lm.loss import Work, loss, num_pieces, token_losses, token_losses_and_work
from qkvflow.lm.model import LanguageModel
from qkvflow.lm.segments import Segment

__all__ = [
    "Flops",
    "LanguageModel",
    "Parameters",
    "Segment",
    "Work",
    "abstract",
    "build",
    "build_config",
    "count_flops",
    "count_parameters",
    "loss",
    "num_pieces",
    "token_losses",
    "token_losses_and_work",
    "weights_in_effect",
]
