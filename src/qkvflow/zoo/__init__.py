"""Named models and everything that comes in kinds, as data: nothing here imports JAX."""

from qkvflow.zoo.config import ModelConfig, configure, modern
from qkvflow.zoo.entries import PUBLISHED, SIZES, entry, names, register
from qkvflow.zoo.registry import FIELDS, INJECTIONS, MIXERS, MODELS, OPTIMISERS, SCHEMES, Registry

__all__ = [
    "FIELDS",
    "INJECTIONS",
    "MIXERS",
    "MODELS",
    "OPTIMISERS",
    "PUBLISHED",
    "SCHEMES",
    "SIZES",
    "ModelConfig",
    "Registry",
    "configure",
    "entry",
    "modern",
    "names",
    "register",
]
