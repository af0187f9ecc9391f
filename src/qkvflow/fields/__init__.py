"""Fields: how a block's weights depend on depth.

A field is a file here, called as the field is: a final subclass of `AbstractField` (`at` and
`stack`), its `init_` function, and a factory registered with `@FIELDS.register(name)`. See
`examples/my_field.py`.
"""

from qkvflow.fields.base import AbstractField
from qkvflow.fields.basis import Basis, init_basis
from qkvflow.fields.gated import Gated, init_gated
from qkvflow.fields.hypernet import Hypernet, init_hypernet
from qkvflow.fields.low_rank import LowRank, init_low_rank
from qkvflow.fields.per_layer import PerLayer, stack_layers
from qkvflow.fields.shared import Shared
from qkvflow.fields.wrappers.frozen_time import FrozenTime
from qkvflow.fields.wrappers.lora import Lora, init_lora

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
