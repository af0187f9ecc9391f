"""What the backward pass keeps of the forward pass, and what it computes again.

    none        everything inside every step is kept
    block       the state before every step is kept; the inside of a step is computed again
    everything  the steps are taken in about sqrt(N) groups. The state before every group is kept;
                the states in a group, and then the inside of a step, are computed again

The second trades one more forward pass of the blocks for memory, the third two (Chen et al. 2016,
Training deep nets with sublinear memory cost). Weights along depth are made once in every case,
and a group has a copy of its own: `everything` pays where a state is larger than a block's weights.
docs/memory.md has measurements.
"""

from collections.abc import Callable
from typing import Any

import jax

MAX_UNROLLED = 8
"""Steps written out one after another. What a step keeps for the backward pass then stays where it
was computed; a loop copies it into stacks and out of them again, a fifth of a training step on a
CPU. Programs grow with it, and so does the time to compile them."""


def scan(
    step: Callable[..., tuple[Any, Any]],
    x: Any,
    inputs: Any,
    *,
    num_steps: int,
    remat: str,
    unroll: bool = True,
) -> tuple[Any, Any]:
    """`jax.lax.scan(step, x, inputs)` over depth, with that rematerialisation."""
    if remat == "none":
        return jax.lax.scan(step, x, inputs, unroll=unrolled(num_steps) if unroll else 1)
    # A loop's body cannot be merged with its recomputation, so nothing else need prevent it.
    step = jax.checkpoint(step, prevent_cse=False)
    length = group_length(num_steps)
    if times_again(remat, num_steps) == 1:
        return jax.lax.scan(step, x, inputs)

    def group(x: Any, each: Any) -> tuple[Any, Any]:
        return jax.lax.scan(step, x, each)

    def grouped(leaf: Any) -> Any:
        return leaf.reshape(num_steps // length, length, *leaf.shape[1:])

    def flat(leaf: Any) -> Any:
        return leaf.reshape(num_steps, *leaf.shape[2:])

    group = jax.checkpoint(group, prevent_cse=False)
    x, outputs = jax.lax.scan(group, x, jax.tree.map(grouped, inputs))
    return x, jax.tree.map(flat, outputs)


def times_again(remat: str, num_steps: int) -> int:
    """How many more forward passes of the blocks that costs. Steps of which there is one, or a
    prime number, make no groups."""
    if remat == "none":
        return 0
    return 2 if remat == "everything" and group_length(num_steps) > 1 else 1


def unrolled(num_steps: int) -> int:
    """How many steps are written out in the body of the loop: all of them, or equal parts."""
    return max(n for n in range(1, MAX_UNROLLED + 1) if num_steps % n == 0)


def group_length(num_steps: int) -> int:
    """The divisor of `num_steps` with the fewest states to keep: of the groups, and in one."""
    divisors = [n for n in range(1, num_steps + 1) if num_steps % n == 0]
    return min(divisors, key=lambda n: num_steps // n + n)
