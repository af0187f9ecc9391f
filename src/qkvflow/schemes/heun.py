"""Heun's method on the summed field, order 2: weights at the start and the end of a step."""

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


class Heun(AbstractStepScheme):
    """The two-stage method at the ends of a step."""

    stages: ClassVar[tuple[float, ...]] = (0.0, 1.0)

    def step(self, blocks: tuple[Block, ...], x: Hidden, size: Size, apply: ApplyBranch) -> Hidden:
        k1 = total_increment(blocks[0], x, apply)
        k2 = total_increment(blocks[1], x + size * k1, apply)
        return x + 0.5 * size * (k1 + k2)

    def evaluations_per_step(self) -> int:
        return 2


@SCHEMES.register("heun")
def make_heun(options: SchemeOptions) -> Heun:
    return Heun()
