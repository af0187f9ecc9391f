"""The depth grid, defined once.

Depth runs over t in [0, 1]. A grid of N steps has dt = 1 / N, and step i goes from i / N to
(i + 1) / N. A one-stage scheme evaluates its weights at the end of each step, the grid proper:

    t_i = (i + 1) / N,  i = 0 .. N-1

Schemes with several stages evaluate at other fractions c of a step, t = (i + c) / N.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray


def grid(num_steps: int) -> Float[np.ndarray, " num_steps"]:
    """t_i = (i + 1) / N."""
    return stage_times(num_steps, (1.0,))[:, 0]


def stage_times(
    num_steps: int, fractions: tuple[float, ...]
) -> Float[np.ndarray, "num_steps stages"]:
    """t = (i + c) / N for each step i and each fraction c."""
    steps = np.arange(num_steps, dtype=np.float64)[:, None]
    return ((steps + np.asarray(fractions)[None]) / num_steps).astype(np.float32)


def shifted_edges(num_steps: int, share: Float[Array, ""]) -> Float[Array, " edges"]:
    """Where steps begin and end on the random grid of Tong et al. 2025: 0, s dt, (s + 1) dt .. 1.

    The first step has the length s dt for a share s in [0, 1], the last one (2 - s) dt, and those
    between dt. With s = 1 it is the grid proper.
    """
    inner = (jnp.arange(num_steps - 1) + share) / num_steps
    return jnp.concatenate([jnp.zeros(1), inner, jnp.ones(1)])


def grouped_edges(num_steps: int, groups: int, key: PRNGKeyArray) -> Float[Array, " edges"]:
    """Where steps begin and end that are a random way of grouping `num_steps` equal ones."""
    cuts = jax.random.permutation(key, num_steps - 1)[: groups - 1] + 1
    inner = jnp.sort(cuts) / num_steps
    return jnp.concatenate([jnp.zeros(1), inner, jnp.ones(1)])


def is_grid(ts: Float[Array | np.ndarray, " depth"], num_steps: int) -> bool:
    """Whether `ts` is known, while tracing, to be the grid of `num_steps` steps."""
    return isinstance(ts, np.ndarray) and np.array_equal(ts, grid(num_steps))
