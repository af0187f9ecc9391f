"""A scheme of your own, in one file.

A scheme says how depth is traversed: which depths' weights a step asks for and what it does with
the increments f(x, t). This one is Ralston's method, of order 2 with the smallest error bound of
all methods with two stages:

    k_1 = f(x, t),   k_2 = f(x + 2/3 h k_1, t + 2/3 dt),   x <- x + h (1/4 k_1 + 3/4 k_2)

Compare it with Euler steps, or run a model that was trained with another scheme with this one:

    qkvflow compare --plugin examples/my_scheme.py --models tong,my-scheme \
        --model.d_model 64 --model.context 64 --steps 300 --out runs/my-scheme
"""

from typing import Any, ClassVar

import qkvflow
from qkvflow.schemes import AbstractStepScheme, SchemeOptions, total_increment
from qkvflow.zoo import SCHEMES


class Ralston(AbstractStepScheme):
    stages: ClassVar[tuple[float, ...]] = (0.0, 2 / 3)
    """Where in a step weights are asked for: `step` is given the blocks at these depths."""

    def step(self, blocks: tuple[Any, ...], x: Any, size: Any, apply: Any) -> Any:
        k1 = total_increment(blocks[0], x, apply)
        k2 = total_increment(blocks[1], x + 2 / 3 * size * k1, apply)
        return x + size * (k1 + 3 * k2) / 4

    def evaluations_per_step(self) -> int:
        return 2


@SCHEMES.register("ralston")
def make_ralston(options: SchemeOptions) -> Ralston:
    """`options` has what a configuration says of schemes: composition and tolerance."""
    return Ralston()


qkvflow.register("my-scheme", field="hypernet", scheme="ralston")
