"""Adaptive step sizes through diffrax: as many steps as the tolerance asks for.

Solves dx/dt = T f(x, t) from 0 to 1 with Tsitouras' embedded Runge-Kutta pair of orders 5 and 4 and
a PID step size controller; `num_steps` only sets the first step. Weights are asked of the field
wherever the solver goes.

The controller looks at the error of the whole batch, so the steps depend on what else is in the
batch, later tokens included, and so does the result, by the error it may have: the tolerance of a
step, times what the rest of the flow and the head make of it (often tenfold). With this scheme a
model is causal up to that. Caches cannot be kept for a number of evaluations
that is not known, so generation recomputes the sequence.
"""

import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float

from qkvflow.blocks.base import Block
from qkvflow.errors import Note, UserError
from qkvflow.schemes.base import (
    AbstractScheme,
    ApplyBranch,
    FieldLike,
    Hidden,
    SchemeOptions,
    Size,
    Solution,
    total_increment,
)
from qkvflow.zoo.registry import SCHEMES


class Adaptive(AbstractScheme):
    rtol: float = eqx.field(static=True, default=1e-3)
    atol: float = eqx.field(static=True, default=1e-3)
    max_steps: int = eqx.field(static=True, default=256)

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
        if before is not None:
            raise UserError(
                "an adaptive scheme has no steps of its own to inject before; choose a fixed one"
            )
        try:
            import diffrax
        except ModuleNotFoundError:
            raise UserError(
                "adaptive schemes need diffrax; install it with: pip install 'qkvflow[adaptive]'"
            ) from None
        solver = diffrax.Tsit5()

        def f(t: Any, x: Hidden, args: Any) -> Hidden:
            block = prepare(field.at(t))
            return horizon * total_increment(block, x, make_apply(None)).astype(x.dtype)

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
        evaluations = solution.stats["num_steps"] * solver.tableau.num_stages
        succeeded = solution.result == diffrax.RESULTS.successful
        # Within a compiled program it is known only when that has run: whoever runs it looks.
        if not isinstance(succeeded, Tracer) and not succeeded:
            warnings.warn(out_of_steps(self.max_steps), Note, stacklevel=2)
        return Solution(states[-1], None, states if save else None, evaluations, succeeded)


def out_of_steps(max_steps: int) -> str:
    """What to tell of a solver that did not arrive."""
    return (
        f"the adaptive solver ran out of its {max_steps} steps before the end of depth, so this is "
        "not the flow's result; give a larger tolerance or another scheme"
    )


@SCHEMES.register("adaptive")
def make_adaptive(options: SchemeOptions) -> Adaptive:
    if not options.tolerance > 0.0:
        raise UserError(f"tolerance must be positive, not {options.tolerance}")
    return Adaptive(rtol=options.tolerance, atol=options.tolerance)
