"""Strang splitting: a palindrome of branch flows, order 2.

Half a step of the first branch, a whole step of the last, half a step of the first again (and
so on inwards where there are more than two). Splitting alone does not give order 2: each
branch's own flow must be advanced to second order as well, which is done with the midpoint
rule. Weights are those at the middle of the step.
"""

from typing import ClassVar

from qkvflow.blocks.base import Block, Branch
from qkvflow.schemes.base import AbstractStepScheme, ApplyBranch, Hidden, SchemeOptions, Size
from qkvflow.zoo.registry import SCHEMES


def _flow(branch: Branch, x: Hidden, size: Size, apply: ApplyBranch) -> Hidden:
    middle = x + 0.5 * size * apply(branch, x)
    return x + size * apply(branch, middle)


class Strang(AbstractStepScheme):
    """Half of the first branch, all of the second, half of the first."""

    stages: ClassVar[tuple[float, ...]] = (0.5,)

    def step(self, blocks: tuple[Block, ...], x: Hidden, size: Size, apply: ApplyBranch) -> Hidden:
        *outer, last = blocks[0].branches
        for branch in outer:
            x = _flow(branch, x, 0.5 * size, apply)
        x = _flow(last, x, size, apply)
        for branch in reversed(outer):
            x = _flow(branch, x, 0.5 * size, apply)
        return x

    def evaluations_per_step(self) -> int:
        # The outer branches are evaluated four times, the last one twice; counted as whole
        # blocks, rounded up.
        return 4


@SCHEMES.register("strang")
def make_strang(options: SchemeOptions) -> Strang:
    return Strang()
