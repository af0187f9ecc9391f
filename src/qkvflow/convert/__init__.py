"""Conversion: a field fitted to the layers of a trained per-layer model."""

from qkvflow.convert.conversion import (
    FIELDS,
    SIZES,
    TAKES,
    Conversion,
    convert,
    layers_in_effect,
    lost,
)
from qkvflow.convert.layers import BASES

__all__ = ["BASES", "FIELDS", "SIZES", "TAKES", "Conversion", "convert", "layers_in_effect", "lost"]
