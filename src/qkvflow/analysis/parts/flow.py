"""The depth flow of a model as a map from one step to the next.

    x_{i+1} = Phi_i(x_i),  i = 0 .. N-1,   a discretisation of dx/dt = T f(x, t)

with the hidden states of a whole sequence as one x: tokens act on each other, so it is one system.
"""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from qkvflow.blocks.base import Block, Rows
from qkvflow.blocks.kernels import forward_mode
from qkvflow.errors import UserError
from qkvflow.fields.base import take
from qkvflow.fields.parts.time import with_steps
from qkvflow.injections import AbstractInjection, NoInjection
from qkvflow.lm import LanguageModel
from qkvflow.schemes import AbstractSolver, AbstractStepScheme, stage_times
from qkvflow.schemes.base import ApplyFull, Hidden


def in_steps(model: LanguageModel) -> LanguageModel:
    """The model as it is analysed: in float32, by steps whose maps can be differentiated.

    For a solver stands what it says: RK4 on the model's grid for an adaptive one, the loop's own
    steps for a fixed point.
    """
    if model.value_residual:
        raise UserError(
            "a model with value_residual is no flow of the state alone, which analyses follow"
        )
    scheme = model.scheme
    if isinstance(scheme, AbstractSolver):
        scheme = scheme.in_steps()
    return dataclasses.replace(model, scheme=scheme, compute_dtype="float32")


class DepthFlow(eqx.Module):
    """Phi, for sequences of one length."""

    blocks: tuple[Block, ...]
    """For each stage of a step, the blocks of all steps."""
    scheme: AbstractStepScheme
    rows: Rows
    size: float = eqx.field(static=True)
    num_steps: int = eqx.field(static=True)
    injection: AbstractInjection = NoInjection()
    given: Hidden | None = None
    """The state before the core, where it is injected."""

    def __call__(self, x: Hidden, step: int | Int[Array, ""]) -> Hidden:
        blocks = tuple(take(stage, step) for stage in self.blocks)
        # Exponents are found by differentiating this map in forward mode.
        with forward_mode():
            if self.given is not None:
                x = self.injection(x, self.given)
            return self.scheme.step(blocks, x, self.size, ApplyFull(self.rows, None))


def depth_flow(
    model: LanguageModel, seq: int, num_steps: int | None = None, *, given: Hidden | None = None
) -> DepthFlow:
    """The core's flow. `given` is the state before it, for models that inject it."""
    scheme, steps = model.scheme, num_steps or model.num_steps
    if not isinstance(scheme, AbstractStepScheme):
        raise UserError("a solver has no steps of its own; analyse in_steps(model)")
    if isinstance(model.injection, NoInjection):
        given = None
    elif given is None:
        raise UserError("this model injects the state before its core; give it as well")
    field = with_steps(model.field, 1.0 / steps)
    blocks = tuple(field.stack(ts) for ts in stage_times(steps, scheme.stages).T)
    return DepthFlow(
        blocks, scheme, Rows(1, seq), model.horizon / steps, steps, model.injection, given
    )


def embedded(model: LanguageModel, tokens: Int[np.ndarray, " seq"]) -> Float[Array, "seq d_model"]:
    """x_0: where the core's flow starts."""
    return model.core.first(entering(model, tokens), Rows(1, len(tokens)))


def entering(model: LanguageModel, tokens: Int[np.ndarray, " seq"]) -> Float[Array, "seq d_model"]:
    """The state before the core."""
    return model.core_input(jnp.asarray(tokens, jnp.int32))
