"""Residual layers: Euler's method with steps of 1, which is what a standard transformer does."""

from qkvflow.schemes.base import AbstractStepScheme, SchemeOptions
from qkvflow.schemes.euler import composed
from qkvflow.zoo.registry import SCHEMES


@SCHEMES.register("residual")
def make_residual(options: SchemeOptions) -> AbstractStepScheme:
    return composed(options, unit_steps=True)
