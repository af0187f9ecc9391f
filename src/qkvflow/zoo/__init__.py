"""Named models: configurations as data, and the assembly that makes models of them."""

from qkvflow.zoo.assembly import FIELDS, MIXERS, abstract, build, build_config
from qkvflow.zoo.config import ModelConfig, configure, modern
from qkvflow.zoo.entries import PUBLISHED, SIZES, ZOO, entry, names, register

__all__ = [
    "FIELDS",
    "MIXERS",
    "PUBLISHED",
    "SIZES",
    "ZOO",
    "ModelConfig",
    "abstract",
    "build",
    "build_config",
    "configure",
    "entry",
    "modern",
    "names",
    "register",
]
