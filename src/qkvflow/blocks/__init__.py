"""Blocks: the arithmetic of one layer. They know nothing of depth.

A mixer is a file here, called as the mixer is: a final subclass of `AbstractMixer`, its `init_`
function, and a factory registered with `@MIXERS.register(name)`. See `examples/my_mixer.py`.
"""

from qkvflow.blocks.attention import Attention
from qkvflow.blocks.base import (
    AbstractAppendingMixer,
    AbstractMixer,
    AbstractNorm,
    AbstractWeights,
    Block,
    Branch,
    Linear,
    Role,
    Rows,
    init_linear,
)
from qkvflow.blocks.kernels.norm import LayerNorm, RMSNorm
from qkvflow.blocks.mlp import MLP
from qkvflow.blocks.selective_ssm import SelectiveSSM
from qkvflow.blocks.ssm import SSM
from qkvflow.blocks.swiglu import SwiGLU

__all__ = [
    "MLP",
    "SSM",
    "AbstractAppendingMixer",
    "AbstractMixer",
    "AbstractNorm",
    "AbstractWeights",
    "Attention",
    "Block",
    "Branch",
    "LayerNorm",
    "Linear",
    "RMSNorm",
    "Role",
    "Rows",
    "SelectiveSSM",
    "SwiGLU",
    "init_linear",
]
