"""Schemes: how depth is traversed. Add one: a file here, an entry in `SCHEMES`."""

from collections.abc import Callable

from qkvflow.errors import UserError, unknown
from qkvflow.schemes.adaptive import Adaptive
from qkvflow.schemes.base import AbstractScheme, AbstractStepScheme
from qkvflow.schemes.euler import Parallel, Sequential
from qkvflow.schemes.grid import grid, shifted_edges, stage_times
from qkvflow.schemes.runge_kutta import RK4, Heun, Midpoint
from qkvflow.schemes.strang import Strang
from qkvflow.zoo.config import SCHEMES

COMPOSITIONS: dict[str, Callable[[], AbstractScheme]] = {
    "sequential": Sequential,
    "parallel": Parallel,
}


def make_scheme(
    name: str, *, composition: str = "sequential", tolerance: float = 1e-3
) -> AbstractScheme:
    """The scheme of that name.

    `composition` is for `residual` and `euler` alone: the others define their own.
    `tolerance` is for `adaptive` alone.
    """
    if name in ("residual", "euler"):
        if composition not in COMPOSITIONS:
            raise unknown("composition", composition, COMPOSITIONS)
        return COMPOSITIONS[composition]()
    if name == "adaptive":
        if not tolerance > 0.0:
            raise UserError(f"tolerance must be positive, not {tolerance}")
        return Adaptive(rtol=tolerance, atol=tolerance)
    others = {"midpoint": Midpoint, "heun": Heun, "rk4": RK4, "strang": Strang}
    if name not in others:
        raise unknown("scheme", name, SCHEMES)
    return others[name]()


def default_horizon(name: str, num_steps: int) -> float:
    """How many whole increments the flow adds up to: N for `residual`, 1 for the rest."""
    return float(num_steps) if name == "residual" else 1.0


__all__ = [
    "COMPOSITIONS",
    "RK4",
    "SCHEMES",
    "AbstractScheme",
    "AbstractStepScheme",
    "Adaptive",
    "Heun",
    "Midpoint",
    "Parallel",
    "Sequential",
    "Strang",
    "default_horizon",
    "grid",
    "make_scheme",
    "shifted_edges",
    "stage_times",
]
