"""One-stage schemes: the explicit Euler method and its Lie-Trotter splitting.

Parallel composition is Euler's method on the summed field,
    x <- x + h (f_1(x) + f_2(x)),
sequential composition takes the branches one after another (Lie-Trotter splitting),
    x <- x + h f_1(x),  x <- x + h f_2(x),
which is what a standard pre-norm transformer does. Both have order 1. With h = 1 this is the
residual update x + f; with h = 1 / N it is Tong et al.'s Euler step. Which of the two is a
matter of the horizon (see `base`), not of the arithmetic.
"""

from typing import ClassVar

from qkvflow.blocks.base import Block
from qkvflow.schemes.base import AbstractStepScheme, ApplyBranch, Hidden, Size, total_increment


class Sequential(AbstractStepScheme):
    stages: ClassVar[tuple[float, ...]] = (1.0,)

    def step(self, blocks: tuple[Block, ...], x: Hidden, size: Size, apply: ApplyBranch) -> Hidden:
        for branch in blocks[0].branches:
            x = x + size * apply(branch, x)
        return x

    def evaluations_per_step(self) -> int:
        return 1


class Parallel(AbstractStepScheme):
    stages: ClassVar[tuple[float, ...]] = (1.0,)

    def step(self, blocks: tuple[Block, ...], x: Hidden, size: Size, apply: ApplyBranch) -> Hidden:
        return x + size * total_increment(blocks[0], x, apply)

    def evaluations_per_step(self) -> int:
        return 1
