"""Conversion: a field fitted to the layers of a trained per-layer model."""

from qkvflow.convert.conversion import FIELDS, SIZES, Conversion, convert, layers_in_effect, lost
from qkvflow.convert.layers import BASES

__all__ = ["BASES", "FIELDS", "SIZES", "Conversion", "convert", "layers_in_effect", "lost"]
