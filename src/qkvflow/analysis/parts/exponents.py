"""Lyapunov exponents of any map iterated in steps, by QR (Benettin et al. 1980).

k tangent vectors are carried along with the state by Jacobian-vector products and made orthonormal
again after every step; the logarithms of what that takes off them add up to the exponents,

    Q_{i+1} R_{i+1} = DPhi_i(x_i) Q_i,    lambda_j = (1 / time) sum_i log |(R_i)_jj|.

The Jacobian itself, which for a sequence has (seq d_model)^2 entries, is never made.

Over a long time the vectors find the leading directions by themselves, and one pass is enough.
A depth flow is short. There the finite-time exponents are (1 / time) log of the singular values of
the whole product of Jacobians, and `passes` finds the directions they belong to: after each
pass the vectors are taken back by the transposed Jacobians (vector-Jacobian products), which is
subspace iteration on M^T M, with a few spare vectors for faster convergence. In the first half of
the passes the vectors are also turned to the singular directions within the space they span
(Rayleigh-Ritz), which tells exponents apart that lie close together. That is only as precise as
the largest of them, so the second half leaves the small ones to themselves: far below the largest,
neighbours closer than about 1 / passes come out closer together than they are; their sum is right.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

StepMap = Callable[[Array, Array], Array]
SPARE = 8


class Exponents(NamedTuple):
    """Lyapunov exponents of a map, and where they came from."""

    values: Float[Array, " k"]
    """Per unit of time, in falling order."""
    growth: Float[Array, "num_steps k"]
    """What each step adds to the logarithm of each direction's length."""


def exponents(
    step_map: StepMap,
    x0: Float[Array, "..."],
    num_steps: int,
    k: int | None = None,
    *,
    key: PRNGKeyArray,
    time: float = 1.0,
    passes: int = 1,
) -> Exponents:
    """The leading k exponents (None: all) of x_{i+1} = step_map(x_i, i) from x0.

    `time` is what all steps take together.
    """
    size = x0.size
    k = size if k is None else min(k, size)
    width = min(size, k + SPARE) if passes > 1 else k
    steps = jnp.arange(num_steps)

    def flat(x: Array, i: Array) -> Array:
        return step_map(x.reshape(x0.shape), i).reshape(-1)

    def push(carry: tuple[Array, Array, Array], i: Array) -> tuple[Any, tuple[Array, Array]]:
        x, q, total = carry
        y, along = jax.linearize(lambda x: flat(x, i), x)
        q, r = jnp.linalg.qr(jax.vmap(along, 1, 1)(q))
        total = r @ total
        # Only its singular directions matter, so it is kept from overflowing.
        total = total / jnp.max(jnp.abs(total))
        return (y, q, total), (x, jnp.log(jnp.abs(jnp.diagonal(r))))

    def pull(q: Array, at: tuple[Array, Array]) -> tuple[Array, None]:
        x, i = at
        _, back = jax.vjp(lambda x: flat(x, i), x)
        return jnp.linalg.qr(jax.vmap(lambda v: back(v)[0], 1, 1)(q))[0], None

    def sweep(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        """Forward through all steps, and back with what came out of it."""
        begin = (start, carry[0], jnp.eye(width, dtype=start.dtype))
        (_, q, total), (states, growth) = jax.lax.scan(push, begin, steps)
        if passes > 1:
            turned = q @ jnp.linalg.svd(total)[0]
            q = jnp.where(number < passes // 2, turned, q)
            q, _ = jax.lax.scan(pull, q, (states, steps), reverse=True)
        return q, growth

    start = x0.reshape(-1)
    q = jnp.linalg.qr(jax.random.normal(key, (size, width), start.dtype))[0]
    growth = jnp.zeros((num_steps, width), start.dtype)
    # The last way back is for nothing, but one program for all passes compiles in half the time.
    _, growth = jax.lax.fori_loop(0, passes, sweep, (q, growth))
    order = jnp.argsort(-growth.sum(0))[:k]
    return Exponents(growth.sum(0)[order] / time, growth[:, order])


def kaplan_yorke(values: Float[np.ndarray, " k"], *, complete: bool) -> float:
    """The Kaplan-Yorke dimension j + (lambda_1 + .. + lambda_j) / |lambda_{j+1}|, where j is the
    most exponents, largest first, whose sum is not negative.

    NaN where k exponents are not all there are and their sum is not yet negative: then the
    dimension is at least k. With all of them, it is their number.
    """
    values = np.sort(np.asarray(values, np.float64))[::-1]
    sums = np.cumsum(values)
    if np.all(sums >= 0):
        return float(len(values)) if complete else float("nan")
    j = int(np.argmax(sums < 0))
    return j + (float(sums[j - 1]) / abs(float(values[j])) if j else 0.0)
