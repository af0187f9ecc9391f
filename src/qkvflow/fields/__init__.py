"""Fields: how a block's weights depend on depth.

Add a field: a file here with a final subclass of `AbstractField` (`at` and `stack`) and its
`init_` function, and an entry in `qkvflow.lm.assembly.FIELDS`.
"""

from qkvflow.fields.base import AbstractField
from qkvflow.fields.basis import Basis, init_basis
from qkvflow.fields.frozen_time import FrozenTime
from qkvflow.fields.gated import Gated, init_gated
from qkvflow.fields.hypernet import Hypernet, init_hypernet
from qkvflow.fields.lora import Lora, init_lora
from qkvflow.fields.low_rank import LowRank, init_low_rank
from qkvflow.fields.per_layer import PerLayer, stack_layers
from qkvflow.fields.shared import Shared

__all__ = [
    "AbstractField",
    "Basis",
    "FrozenTime",
    "Gated",
    "Hypernet",
    "Lora",
    "LowRank",
    "PerLayer",
    "Shared",
    "init_basis",
    "init_gated",
    "init_hypernet",
    "init_lora",
    "init_low_rank",
    "stack_layers",
]
