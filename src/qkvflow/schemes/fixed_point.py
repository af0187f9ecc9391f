"""The fixed point of a loop: as many loops as the tolerance asks for (Bai et al. 2019).

Solves x = g(x, e), where g is all steps of the core, each with its injection before it; with one
step and x + f(x, e) for it, this is f(x, e) = 0. Loops are taken until no entry of x moves by more
than the tolerance (optimistix's fixed-point iteration), which is certain where g is contractive
alone: `succeeded` says whether it was so, `residual` the largest move of the last loop.

The gradient is that of the implicit function, whatever was taken on the way: with u the solution of

    u = v + (dg/dx)^T u

for the gradient v of x, that of the weights is (dg/dw)^T u. The equation is solved with lineax
(GMRES, to the same tolerance), by products with the transposed Jacobian alone. Where it is not
solved the gradient is NaN, and training leaves the update out.

All tokens of a batch take the same loops, so the result of a token depends on the others by what
the tolerance allows. The first state has no influence on the solution, and no gradient.
"""

import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float

from qkvflow.blocks.base import Block
from qkvflow.errors import Note, UserError
from qkvflow.schemes.base import (
    AbstractSolver,
    AbstractStepScheme,
    ApplyBranch,
    FieldLike,
    Hidden,
    SchemeOptions,
    Size,
    Solution,
    check_injected,
)
from qkvflow.schemes.euler import composed
from qkvflow.schemes.parts.grid import stage_times
from qkvflow.zoo.registry import SCHEMES

_RESTART = 10
"""Products that GMRES keeps, and makes at least."""


class FixedPoint(AbstractSolver):
    """The state that a step of the core leaves as it is, found by iteration."""

    injected: ClassVar[bool | None] = True
    steps: AbstractStepScheme
    """Of one loop; with one stage."""
    tolerance: float = eqx.field(static=True, default=1e-3)
    max_steps: int = eqx.field(static=True, default=64)

    def gave_up(self) -> str:
        return (
            f"after {self.max_steps} loops the state still moved by more than the tolerance, so "
            "this is no fixed point; give a larger tolerance or another scheme"
        )

    def blocks_made(self, num_steps: int, evaluations: int | float) -> int | float:
        return num_steps

    def in_steps(self) -> AbstractStepScheme:
        return self.steps

    def default_horizon(self, num_steps: int) -> float:
        return self.steps.default_horizon(num_steps)

    def integrate(
        self,
        field: FieldLike,
        x: Hidden,
        *,
        num_steps: int,
        horizon: Size,
        make_apply: Callable[[Any], ApplyBranch],
        per_step: Any = None,
        prepare: Callable[[Block], Block] = lambda block: block,
        remat: str = "none",
        save: bool = False,
        edges: Float[Array, " edges"] | None = None,
        before: Callable[[Hidden], Hidden] | None = None,
    ) -> Solution:
        if edges is not None:
            raise UserError("a fixed point has the grid of its loop; leave the random grid out")
        check_injected("fixed-point", self, before is not None)
        _require()
        (times,) = stage_times(num_steps, self.steps.stages).T
        made = _Made(field, prepare(field.stack(times)))

        def loop(x: Hidden, save: bool = False) -> Solution:
            return self.steps.integrate(
                made,
                x,
                num_steps=num_steps,
                horizon=horizon,
                make_apply=make_apply,
                per_step=per_step,
                remat=remat,
                save=save,
                before=before,
            )

        # All that the loop is made of becomes its argument, to be differentiated by.
        closed = eqx.filter_closure_convert(lambda x: loop(x).x, x)
        end, loops, residual, arrived = _solve(
            closed, jax.lax.stop_gradient(x), self.tolerance, self.max_steps
        )
        if not isinstance(arrived, Tracer) and not arrived:
            warnings.warn(self.gave_up(), Note, stacklevel=2)
        evaluations = loops * num_steps * self.steps.evaluations_per_step()
        states = loop(end, save=True).trajectory if save else None
        return Solution(end, None, states, evaluations, arrived, residual)


class _Made(eqx.Module):
    """The blocks of a loop, made once for all loops."""

    field: Any
    blocks: Block

    def at(self, t: Any) -> Block:
        return self.field.at(t)

    def stack(self, ts: Any) -> Block:
        return self.blocks


@eqx.filter_custom_vjp
def _solve(
    loop: Callable[[Hidden], Hidden], first: Hidden, tolerance: float, max_steps: int
) -> tuple[Hidden, Array, Array, Array]:
    """x = loop(x), the loops it took, the last residual, and whether that is small enough."""
    import optimistix

    def again(x: Hidden, args: None) -> tuple[Hidden, Array]:
        new = loop(x)
        return new, jnp.max(jnp.abs(new - x))

    # throw=True would defeat the persistent compilation cache.
    found = optimistix.fixed_point(
        again,
        optimistix.FixedPointIteration(rtol=tolerance, atol=tolerance),
        first,
        has_aux=True,
        max_steps=max_steps,
        throw=False,
    )
    arrived = found.result == optimistix.RESULTS.successful
    return found.value, found.stats["num_steps"], found.aux, arrived


@_solve.def_fwd
def _forward(
    perturbed: Any, loop: Callable[[Hidden], Hidden], first: Hidden, *limits: Any
) -> tuple[Any, Hidden]:
    out = _solve(loop, first, *limits)
    return out, out[0]


@_solve.def_bwd
def _backward(
    end: Hidden,
    cotangents: Any,
    perturbed: Any,
    loop: Callable[[Hidden], Hidden],
    first: Hidden,
    tolerance: float,
    max_steps: int,
) -> Any:
    import lineax

    given = cotangents[0]
    size = jnp.max(jnp.abs(given))
    size = jnp.where(size > 0.0, size, 1.0)
    _, pull = eqx.filter_vjp(lambda loop, x: loop(x), loop, end)
    solved = lineax.linear_solve(
        lineax.FunctionLinearOperator(
            lambda u: u - pull(u)[1], jax.ShapeDtypeStruct(end.shape, end.dtype)
        ),
        given / size,
        lineax.GMRES(tolerance, tolerance, max_steps=max_steps, restart=_RESTART),
        throw=False,
    )
    arrived = solved.result == lineax.RESULTS.successful
    return pull(jnp.where(arrived, size * solved.value, jnp.nan))[0]


def _require() -> None:
    try:
        import lineax  # noqa: F401
        import optimistix  # noqa: F401
    except ModuleNotFoundError:
        raise UserError(
            "scheme fixed-point needs optimistix and lineax; install them with: "
            "pip install 'qkvflow[adaptive]'"
        ) from None


@SCHEMES.register("fixed-point")
def make_fixed_point(options: SchemeOptions) -> FixedPoint:
    if not options.tolerance > 0.0:
        raise UserError(f"tolerance must be positive, not {options.tolerance}")
    return FixedPoint(steps=composed(options, unit_steps=True), tolerance=options.tolerance)
