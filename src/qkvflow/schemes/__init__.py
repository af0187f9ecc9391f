"""Schemes: how depth is traversed.

A scheme is a file here, called as the scheme is: a final subclass of `AbstractScheme` and a factory
registered with `@SCHEMES.register(name)`. See `examples/my_scheme.py`.
"""

from qkvflow.schemes.adaptive import Adaptive
from qkvflow.schemes.base import (
    AbstractScheme,
    AbstractSolver,
    AbstractStepScheme,
    SchemeOptions,
    check_injected,
    total_increment,
)
from qkvflow.schemes.euler import Parallel, Sequential
from qkvflow.schemes.fixed_point import FixedPoint
from qkvflow.schemes.heun import Heun
from qkvflow.schemes.midpoint import Midpoint
from qkvflow.schemes.parts.grid import grid, grouped_edges, shifted_edges, stage_times
from qkvflow.schemes.rk4 import RK4
from qkvflow.schemes.strang import Strang
from qkvflow.zoo.registry import SCHEMES


def make_scheme(
    name: str, *, composition: str = "sequential", tolerance: float = 1e-3
) -> AbstractScheme:
    """The scheme of that name.

    `composition` is for `residual`, `euler` and `fixed-point`: the others define their own.
    `tolerance` is for solvers (`adaptive`, `fixed-point`).
    """
    return SCHEMES[name](SchemeOptions(composition, tolerance))


def default_horizon(name: str, num_steps: int) -> float:
    """How many whole increments the flow adds up to: N for `residual` and the loop of
    `fixed-point`, 1 for the rest."""
    return make_scheme(name).default_horizon(num_steps)


__all__ = [
    "RK4",
    "AbstractScheme",
    "AbstractSolver",
    "AbstractStepScheme",
    "Adaptive",
    "FixedPoint",
    "Heun",
    "Midpoint",
    "Parallel",
    "SchemeOptions",
    "Sequential",
    "Strang",
    "check_injected",
    "default_horizon",
    "grid",
    "grouped_edges",
    "make_scheme",
    "shifted_edges",
    "stage_times",
    "total_increment",
]
