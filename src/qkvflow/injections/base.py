"""What an injection is: a map (x, e) -> x before every step of a segment.

e is the state that the segment began from. A core that is run many times forgets it otherwise:
neither the block nor the field knows that it is fed in again.
"""

import abc

import equinox as eqx
from jaxtyping import Array, Float


class AbstractInjection(eqx.Module):
    """How the state before a looped core enters each of its steps."""

    @abc.abstractmethod
    def __call__(
        self, x: Float[Array, "rows d_model"], e: Float[Array, "rows d_model"]
    ) -> Float[Array, "rows d_model"]:
        """The state that the step begins from. Row by row: tokens do not meet here."""

    @abc.abstractmethod
    def flops_per_token(self) -> int:
        """Of one application, matrix products alone."""
