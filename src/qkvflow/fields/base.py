"""What a field is: a map from depth to a block."""

import abc
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from qkvflow.schemes.parts.grid import grid

Depth = float | np.floating | Float[Array, ""] | Float[np.ndarray, ""]
Depths = Float[np.ndarray, " depth"] | Float[Array, " depth"]
MakeBlock = Callable[[PRNGKeyArray], Any]
"""Gives a block with fresh weights."""


class AbstractField(eqx.Module):
    """t -> block, for t in [0, 1]. (Any tree of weights will do: the final norm is one too.)"""

    @abc.abstractmethod
    def stack(self, ts: Depths) -> Any:
        """The blocks at all of `ts`, with a leading depth axis on every array.

        Generators read their parameters once for all depths. A NumPy array of depths is known
        while tracing, which lets a field recognise its own grid.
        """

    @abc.abstractmethod
    def at(self, t: Depth) -> Any:
        """The block at one depth."""


def at_one(field: AbstractField, t: Depth) -> Any:
    """`at` for a field that has only one way to make a block: a stack of one."""
    return take(field.stack(jnp.asarray(t, jnp.float32)[None]), 0)


@eqx.filter_jit
def on_grid(field: AbstractField, num_steps: int) -> Any:
    """The blocks at all points of a grid, made by one program and not operation by operation."""
    return field.stack(grid(num_steps))


def take(blocks: Any, index: int | Int[Array, ""]) -> Any:
    """One block of a stack."""
    return jax.tree.map(lambda leaf: leaf[index], blocks)


def repeat(block: Any, depth: int) -> Any:
    """The same block at every depth."""
    return jax.tree.map(lambda leaf: _repeat(leaf, depth), block)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _repeat(leaf: Array, depth: int) -> Array:
    return jnp.broadcast_to(leaf, (depth, *leaf.shape))


def _repeat_forward(leaf: Array, depth: int) -> tuple[Array, None]:
    return _repeat(leaf, depth), None


def _repeat_backward(depth: int, _: None, grad: Array) -> tuple[Array]:
    # As a product, which all cores share; a plain sum over so short an axis is one core's work.
    return (jnp.tensordot(jnp.ones(depth, grad.dtype), grad, 1),)


_repeat.defvjp(_repeat_forward, _repeat_backward)


def rms(x: Array) -> Array:
    return jnp.sqrt(jnp.mean(jnp.square(x)))
