"""The explicit midpoint rule on the summed field, order 2: weights at the start and the middle."""

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


class Midpoint(AbstractStepScheme):
    """The two-stage method at the middle of a step."""

    stages: ClassVar[tuple[float, ...]] = (0.0, 0.5)

    def step(self, blocks: tuple[Block, ...], x: Hidden, size: Size, apply: ApplyBranch) -> Hidden:
        middle = x + 0.5 * size * total_increment(blocks[0], x, apply)
        return x + size * total_increment(blocks[1], middle, apply)

    def evaluations_per_step(self) -> int:
        return 2


@SCHEMES.register("midpoint")
def make_midpoint(options: SchemeOptions) -> Midpoint:
    return Midpoint()
