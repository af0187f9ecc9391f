"""The classical Runge-Kutta method on the summed field, order 4.

Stages apply the weights at their own depths (0 is the start of a step), as a non-autonomous
equation requires. See Hairer, Norsett and Wanner, Solving ODEs I.
"""

from typing import ClassVar

from qkvflow.blocks.base import Block
from qkvflow.schemes.base import (
    AbstractStepScheme,
    ApplyBranch,
    Hidden,
    SchemeOptions,
    Size,
    total_increment,
)
from qkvflow.zoo.registry import SCHEMES


class RK4(AbstractStepScheme):
    """The classical Runge-Kutta method of four stages."""

    stages: ClassVar[tuple[float, ...]] = (0.0, 0.5, 1.0)

    def step(self, blocks: tuple[Block, ...], x: Hidden, size: Size, apply: ApplyBranch) -> Hidden:
        k1 = total_increment(blocks[0], x, apply)
        k2 = total_increment(blocks[1], x + 0.5 * size * k1, apply)
        k3 = total_increment(blocks[1], x + 0.5 * size * k2, apply)
        k4 = total_increment(blocks[2], x + size * k3, apply)
        return x + size / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)

    def evaluations_per_step(self) -> int:
        return 4


@SCHEMES.register("rk4")
def make_rk4(options: SchemeOptions) -> RK4:
    return RK4()
