"""Lyapunov exponents of the depth flow dx/dt = T f(x, t), for the states of a whole sequence.

They are finite-time exponents over t in [0, 1]: the logarithms of the singular values of
dx(1) / dx(0), with x(0) the first state of the core. Positive: perturbations of it grow along
depth; negative: they are forgotten. Two token-level quantities stand beside them:

    sensitivity   for one output position p and every input token j, the size of dx_p(1) / de_j with
                  e the state before the core (the embedded text, where there is no prelude), by
                  whatever way it enters: as the first state, or injected before every step. The
                  root mean square growth of a random perturbation, and the largest growth
    own_exponent  Tong et al. 2025 propagate each token's own block of the Jacobian alone, as if the
                  other tokens stood still; that is the leading exponent of this map. It is not an
                  exponent of the flow, in which tokens act on each other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from qkvflow.analysis.base import AbstractResult, Analysis, Subject
from qkvflow.analysis.parts.exponents import Exponents, exponents, kaplan_yorke
from qkvflow.analysis.parts.flow import DepthFlow, depth_flow, embedded, entering, in_steps
from qkvflow.blocks.base import Rows
from qkvflow.distributed.memory import check_fits, check_program, tree_bytes
from qkvflow.lm import LanguageModel
from qkvflow.zoo.registry import ANALYSES

PASSES = 10
CHUNK = 32
"""Vectors carried through the flow at once, where there are many: what bounds the memory."""


@dataclass(frozen=True)
class Lyapunov(AbstractResult):
    """How perturbations of a text grow along depth; see docs/analysis.md for each array."""

    exponents: Float[np.ndarray, " k"]
    growth: Float[np.ndarray, "num_steps k"]
    """What each step adds to the logarithm of each direction's length."""
    size: int
    """How many exponents there are: seq d_model."""
    dimension: float
    """Kaplan-Yorke; NaN where more exponents would be needed."""
    position: int
    """The output position that sensitivities are for."""
    sensitivity: Float[np.ndarray, " seq"]
    largest: Float[np.ndarray, " seq"]
    own_exponents: Float[np.ndarray, " seq"]
    tokens: Int[np.ndarray, " seq"]

    def findings(self) -> list[str]:
        k, top = len(self.exponents), float(self.exponents[0])
        kind = "grow" if top > 0 else "shrink"
        positive = int(np.sum(self.exponents > 0))
        of = "all" if k == self.size else f"the leading {k} of {self.size}"
        told = (
            f"The Kaplan-Yorke dimension is {self.dimension:.2f} of {self.size}."
            if np.isfinite(self.dimension)
            else f"The Kaplan-Yorke dimension is at least {k}: the sum of the leading {k} is still "
            f"{float(self.exponents.sum()):+.2f}, not negative."
        )
        strongest = int(np.argmax(self.sensitivity))
        where = "itself" if strongest == self.position else f"token {strongest + 1}"
        return [
            f"The largest exponent is {top:+.3f}: along the depth of the model the fastest "
            f"perturbations of its states {kind} by a factor {np.exp(top):.3g}.".replace("-", "−"),
            f"Of {of} exponents, {positive} {'is' if positive == 1 else 'are'} positive. {told}",
            f"The state at token {self.position + 1} is most sensitive to {where}: a small random "
            f"change there comes out {self.sensitivity[strongest]:.3g} times as large.",
        ]


def lyapunov(
    model: LanguageModel,
    tokens: Int[np.ndarray, " seq"],
    k: int | None = 16,
    *,
    position: int = -1,
    seed: int = 0,
) -> Lyapunov:
    """The leading k exponents (None: all) for a text, and sensitivities of one output position."""
    model = in_steps(model)
    seq = len(tokens)
    position = range(seq)[position]
    what = f"the lyapunov analysis of {seq} tokens"
    instead = "give a shorter --text, fewer --exponents or fewer --num-steps"
    check = partial(check_program, what=what, instead=instead)
    make = lambda: depth_flow(model, seq, given=entering(model, tokens))  # noqa: E731
    check_fits(tree_bytes(make), what, instead)
    flow, x0, e = make(), embedded(model, tokens), entering(model, tokens)
    key, place = jax.random.key(seed), jnp.asarray(position)
    begin = eqx.Partial(model.core.first, rows=Rows(1, seq))
    check(_exponents, flow, x0, k, key)
    check(_jacobian_rows, flow, begin, e, place)
    # Rows of the Jacobian, then in double precision, and their squares.
    entries = x0.size * x0.shape[1]
    check_fits(4 * entries, what, instead, host=2 * 8 * entries)
    check(_own_exponents, flow, x0, key)
    found = _exponents(flow, x0, k, key)
    jacobian = np.asarray(_jacobian_rows(flow, begin, e, place), np.float64)
    blocks = np.moveaxis(jacobian, 1, 0)
    return Lyapunov(
        np.asarray(found.values),
        np.asarray(found.growth),
        x0.size,
        kaplan_yorke(np.asarray(found.values), complete=len(found.values) == x0.size),
        position,
        np.sqrt(np.sum(blocks**2, axis=(1, 2)) / blocks.shape[-1]),
        np.linalg.norm(blocks, ord=2, axis=(1, 2)),
        np.asarray(_own_exponents(flow, x0, key)),
        np.asarray(tokens, np.int64),
    )


@eqx.filter_jit
def _exponents(flow: DepthFlow, x0: Array, k: int | None, key: Array) -> Exponents:
    return exponents(flow, x0, flow.num_steps, k, key=key, passes=PASSES)


def _end(flow: DepthFlow, x0: Array) -> Array:
    return jax.lax.scan(lambda x, i: (flow(x, i), None), x0, jnp.arange(flow.num_steps))[0]


@eqx.filter_jit
def _jacobian_rows(
    flow: DepthFlow, begin: Callable[[Array], Array], e: Array, position: Array
) -> Float[Array, "d_model seq d"]:
    """dx_p(1) / de for one position, a vector-Jacobian product for each of its channels. `begin`
    makes the first state of e."""

    def end(e: Array) -> Array:
        own = flow if flow.given is None else eqx.tree_at(lambda flow: flow.given, flow, e)
        return _end(own, begin(e))[position]

    _, back = jax.vjp(end, e)
    return jax.lax.map(lambda row: back(row)[0], jnp.eye(e.shape[1]), batch_size=CHUNK)


@eqx.filter_jit
def _own_exponents(flow: DepthFlow, x0: Array, key: Array) -> Float[Array, " seq"]:
    """The leading exponent of each token's own block, the others held on their path.

    By power iteration on M^T M, with one vector for every token.
    """
    steps, places = jnp.arange(flow.num_steps), jnp.arange(x0.shape[0])

    def own(linear: Callable[[Array], Array], v: Array) -> tuple[Array, Array]:
        """Each token's vector through its own block of a linear map; unit vectors, and sizes."""
        alone = lambda j: linear(jnp.zeros_like(v).at[j].set(v[j]))[j]  # noqa: E731
        v = jax.lax.map(alone, places, batch_size=CHUNK)
        size = jnp.linalg.norm(v, axis=-1, keepdims=True)
        return v / size, jnp.log(size[:, 0])

    def push(carry: tuple[Array, Array], i: Array) -> tuple[tuple[Array, Array], Any]:
        x, v = carry
        y, along = jax.linearize(lambda x: flow(x, i), x)
        v, growth = own(along, v)
        return (y, v), (x, growth)

    def pull(v: Array, at: tuple[Array, Array]) -> tuple[Array, None]:
        x, i = at
        _, back = jax.vjp(lambda x: flow(x, i), x)
        return own(lambda v: back(v)[0], v)[0], None

    def sweep(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        (_, v), (states, growth) = jax.lax.scan(push, (x0, carry[0]), steps)
        return jax.lax.scan(pull, v, (states, steps), reverse=True)[0], growth.sum(0)

    v = jax.random.normal(key, x0.shape)
    v = v / jnp.linalg.norm(v, axis=-1, keepdims=True)
    return jax.lax.fori_loop(0, PASSES, sweep, (v, jnp.zeros(x0.shape[0])))[1]


@ANALYSES.register("lyapunov")
class LyapunovAnalysis(Analysis):
    order: ClassVar[int] = 20

    def run(self, subject: Subject) -> AbstractResult:
        return lyapunov(subject.model, subject.tokens, subject.num_exponents)

    def lacks(self, model: LanguageModel) -> str | None:
        return None
