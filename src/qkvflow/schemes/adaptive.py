"""Adaptive step sizes through diffrax: as many steps as the tolerance asks for.

Solves dx/dt = T f(x, t) from 0 to 1 with Tsitouras' embedded Runge-Kutta pair of orders 5 and 4 and
a PID step size controller; `num_steps` only sets the first step. Weights are asked of the field
wherever the solver goes. Dropout draws one mask for all depths.

The controller looks at the error of the whole batch, so the steps depend on what else is in the
batch, later tokens included, and so does the result, by the error it may have: the tolerance of a
step, times what the rest of the flow and the head make of it (often tenfold). With this scheme a
model is causal up to that. Caches cannot be kept for a number of evaluations
that is not known, so generation recomputes the sequence.
"""

import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
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
    total_increment,
)
from qkvflow.schemes.rk4 import RK4
from qkvflow.zoo.registry import SCHEMES


class Adaptive(AbstractSolver):
    """Steps as long as a tolerance allows, found by diffrax."""

    injected: ClassVar[bool | None] = False
    rtol: float = eqx.field(static=True, default=1e-3)
    atol: float = eqx.field(static=True, default=1e-3)
    max_steps: int = eqx.field(static=True, default=256)

    def gave_up(self) -> str:
        return (
            f"the adaptive solver ran out of its {self.max_steps} steps before the end of depth, "
            "so this is not the flow's result; give a larger tolerance or another scheme"
        )

    def blocks_made(self, num_steps: int, evaluations: int | float) -> int | float:
        return evaluations

    def in_steps(self) -> AbstractStepScheme:
        return RK4()

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
            raise UserError("an adaptive scheme finds its own steps; leave the random grid out")
        check_injected("adaptive", self, before is not None)
        try:
            import diffrax
        except ModuleNotFoundError:
            raise UserError(
                "adaptive schemes need diffrax; install it with: pip install 'qkvflow[adaptive]'"
            ) from None
        solver = diffrax.Tsit5()

        # One mask of dropout for all depths: the solver needs the same f whenever it asks.
        key = None if per_step is None else per_step[0]

        def f(t: Any, x: Hidden, args: Any) -> Hidden:
            block = prepare(field.at(t))
            return horizon * total_increment(block, x, make_apply(key)).astype(x.dtype)

        saved = (
            diffrax.SaveAt(ts=jnp.linspace(0.0, 1.0, num_steps + 1))
            if save
            else diffrax.SaveAt(t1=True)
        )
        # throw=True would defeat the persistent compilation cache; the result says whether the
        # solver succeeded instead.
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(f),
            solver,
            t0=0.0,
            t1=1.0,
            dt0=1.0 / num_steps,
            y0=x,
            saveat=saved,
            stepsize_controller=diffrax.PIDController(rtol=self.rtol, atol=self.atol),
            max_steps=self.max_steps,
            throw=False,
        )
        states = solution.ys
        assert states is not None
        # The last stage of a step is the first of the next. It is evaluated anew for the first
        # step, as often as that is tried; later rejections have it, and count one too many each.
        stages, stats = solver.tableau.num_stages, solution.stats
        evaluations = (stages - 1) * stats["num_steps"] + 1 + stats["num_rejected_steps"]
        succeeded = solution.result == diffrax.RESULTS.successful
        # Within a compiled program it is known only when that has run: whoever runs it looks.
        if not isinstance(succeeded, Tracer) and not succeeded:
            warnings.warn(self.gave_up(), Note, stacklevel=2)
        return Solution(states[-1], None, states if save else None, evaluations, succeeded)


@SCHEMES.register("adaptive")
def make_adaptive(options: SchemeOptions) -> Adaptive:
    if not options.tolerance > 0.0:
        raise UserError(f"tolerance must be positive, not {options.tolerance}")
    return Adaptive(rtol=options.tolerance, atol=options.tolerance)
