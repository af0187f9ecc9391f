"""Euler's method and its Lie-Trotter splitting, both with one stage.

Parallel composition is Euler's method on the summed field,
    x <- x + h (f_1(x) + f_2(x)),
sequential composition takes the branches one after another (Lie-Trotter splitting),
    x <- x + h f_1(x),  x <- x + h f_2(x),
which is what a standard pre-norm transformer does. Both have order 1. With h = 1 this is the
residual update x + f (`residual`); with h = 1 / N it is the Euler step of Tong et al. 2025
(`euler`). Which of the two is a matter of the horizon (see `base`), not of the arithmetic.
"""

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx

from qkvflow.blocks.base import Block
from qkvflow.errors import unknown
from qkvflow.schemes.base import (
    AbstractStepScheme,
    ApplyBranch,
    Hidden,
    SchemeOptions,
    Size,
    total_increment,
)
from qkvflow.zoo.registry import SCHEMES


class Sequential(AbstractStepScheme):
    """Branches one after another: Lie-Trotter splitting, a standard transformer."""

    stages: ClassVar[tuple[float, ...]] = (1.0,)
    unit_steps: bool = eqx.field(static=True, default=False)
    """Whether the horizon is as many increments as there are steps, where nothing else is said."""

    def default_horizon(self, num_steps: int) -> float:
        return float(num_steps) if self.unit_steps else 1.0

    def step(self, blocks: tuple[Block, ...], x: Hidden, size: Size, apply: ApplyBranch) -> Hidden:
        for branch in blocks[0].branches:
            x = x + size * apply(branch, x)
        return x

    def evaluations_per_step(self) -> int:
        return 1


class Parallel(AbstractStepScheme):
    """Euler on the sum of the branches."""

    stages: ClassVar[tuple[float, ...]] = (1.0,)
    unit_steps: bool = eqx.field(static=True, default=False)
    """Whether the horizon is as many increments as there are steps, where nothing else is said."""

    def default_horizon(self, num_steps: int) -> float:
        return float(num_steps) if self.unit_steps else 1.0

    def step(self, blocks: tuple[Block, ...], x: Hidden, size: Size, apply: ApplyBranch) -> Hidden:
        return x + size * total_increment(blocks[0], x, apply)

    def evaluations_per_step(self) -> int:
        return 1


COMPOSITIONS: dict[str, Callable[..., AbstractStepScheme]] = {
    "sequential": Sequential,
    "parallel": Parallel,
}


def composed(options: SchemeOptions, *, unit_steps: bool) -> AbstractStepScheme:
    if options.composition not in COMPOSITIONS:
        raise unknown("composition", options.composition, COMPOSITIONS)
    return COMPOSITIONS[options.composition](unit_steps)


@SCHEMES.register("euler")
def make_euler(options: SchemeOptions) -> AbstractStepScheme:
    return composed(options, unit_steps=False)
