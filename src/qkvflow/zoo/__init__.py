"""Named models and everything that comes in kinds, as data: nothing here imports JAX."""

from qkvflow.zoo.config import ModelConfig, configure, modern
from qkvflow.zoo.entries import PUBLISHED, SIZES, ZOO, entry, names, register

__all__ = [
    "PUBLISHED",
    "SIZES",
    "ZOO",
    "ModelConfig",
    "configure",
    "entry",
    "modern",
    "names",
    "register",
]
