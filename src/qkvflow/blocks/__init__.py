"""Blocks: the arithmetic of one layer. They know nothing of depth.

Add a mixer: a file here with a final subclass of `AbstractMixer` and its `init_` function, and an
entry in `qkvflow.lm.assembly.MIXERS`.
"""

from qkvflow.blocks.attention import Attention
from qkvflow.blocks.base import (
    AbstractMixer,
    AbstractNorm,
    AbstractWeights,
    Block,
    Branch,
    Linear,
    Rows,
)
from qkvflow.blocks.mlp import MLP, SwiGLU
from qkvflow.blocks.norm import LayerNorm, RMSNorm
from qkvflow.blocks.selective_ssm import SelectiveSSM
from qkvflow.blocks.ssm import SSM

__all__ = [
    "MLP",
    "SSM",
    "AbstractMixer",
    "AbstractNorm",
    "AbstractWeights",
    "Attention",
    "Block",
    "Branch",
    "LayerNorm",
    "Linear",
    "RMSNorm",
    "Rows",
    "SelectiveSSM",
    "SwiGLU",
]
