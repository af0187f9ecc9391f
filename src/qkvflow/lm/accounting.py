"""What a model stores and what it computes, counted analytically.

XLA's cost analysis counts the body of a scan once, so it cannot be asked. How weights along depth
are made is the field's own affair: there the products are counted that it traces to.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jax.extend.core import Jaxpr, jaxprs_in_params

from qkvflow.blocks.attention import values_flops
from qkvflow.blocks.base import Block
from qkvflow.compilation import shared
from qkvflow.fields.base import AbstractField, Depths
from qkvflow.lm.model import LanguageModel
from qkvflow.lm.segments import Segment
from qkvflow.schemes import AbstractSolver, AbstractStepScheme, stage_times
from qkvflow.schemes.parts.remat import times_again


def count(tree: Any) -> int:
    return sum(
        leaf.size
        for leaf in jax.tree.leaves(tree)
        if eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)
    )


class Parameters(NamedTuple):
    """Numbers of trained parameters. Blocks are those of all segments, with the injection; the
    head includes the final norm and an exit gate."""

    total: int
    embedding: int
    blocks: int
    head: int


def count_parameters(model: LanguageModel) -> Parameters:
    """Stored numbers: `total`, and of it `embedding`, `blocks` and `head`."""
    embedding = count(model.embedding) + count(model.positions)
    blocks = count((model.prelude, model.field, model.injection, model.coda))
    head = count((model.head, model.norm, model.exit_gate))
    return Parameters(embedding + blocks + head, embedding, blocks, head)


def block_at_end(model: LanguageModel) -> Block:
    """The shapes of one block of the core."""
    return _block(model.core)


def _block(segment: Segment) -> Block:
    def shape(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf

    leaves, structure = jax.tree.flatten(segment.field)
    return _block_of(tuple(map(shape, leaves)), structure)


@shared
def _block_of(leaves: tuple[Any, ...], structure: Any) -> Block:
    field = jax.tree.unflatten(structure, leaves)
    return eqx.filter_eval_shape(lambda field: field.at(1.0), field)


def weights_in_effect(model: LanguageModel) -> int:
    """Block weights applied along the grid: what a per-layer model of this shape would store."""
    return sum(each.num_steps * count(_block(each)) for each in model.segments)


class Flops(NamedTuple):
    """Floating-point operations: a multiply-add is two, and training is three times forward."""

    forward: int
    """Per token, forward."""
    training: int
    """Per token, forward and backward, and forward again what rematerialisation asks for."""
    generation: int
    """Per forward pass, whatever the batch: making the weights along depth."""

    def per_step(self, tokens: int, parts: int = 1) -> int:
        """A whole training step of that many tokens, the making of weights included: it is
        differentiated in each of the `parts` that gradients are accumulated over. Forward it is
        the same for all of them, and the compiler does it once."""
        return self.training * tokens + (1 + 2 * parts) * self.generation


def count_evaluations(model: LanguageModel) -> int:
    """Evaluations of a whole block of the core; for a solver, a step counts as one."""
    return _evaluations(model.core)


def _evaluations(segment: Segment) -> int:
    if isinstance(segment.scheme, AbstractStepScheme):
        return segment.num_steps * segment.scheme.evaluations_per_step()
    return segment.num_steps


def count_flops(
    model: LanguageModel, context: int | None = None, *, evaluations: float | None = None
) -> Flops:
    """At sequences of `context` tokens (default: the model's own).

    `evaluations` is how many a solver of the core was found to make.
    """
    blocks = again = making = coda = 0.0
    for index, segment in enumerate(model.segments):
        found = evaluations if index == len(model.prelude) else None
        times = _evaluations(segment) if found is None else found
        cost = times * _block(segment).flops_per_token(context or model.context)
        injections = segment.num_steps if found is None else found
        cost += injections * segment.injection.flops_per_token()
        blocks += cost
        again += times_again(model.remat, segment.num_steps) * cost
        coda += cost if index > len(model.prelude) else 0
        making += _making(segment, times)
    blocks = round(blocks)
    head = 2 * model.d_model * model.vocab_size
    forward = blocks + head
    if model.value_residual:
        forward += values_flops(_block(model.segments[0]))
    training = 3 * forward + round(again)
    if model.exit_gate is not None:
        # Coda and head read the state after every step.
        training += round(3 * (model.num_steps - 1) * (head + coda))
    return Flops(forward, training, round(making))


def _making(segment: Segment, evaluations: int | float) -> int | float:
    """Making the blocks of a pass."""
    scheme, steps = segment.scheme, segment.num_steps
    stages = scheme.stages if isinstance(scheme, AbstractStepScheme) else (1.0,)
    once = sum(_stack_flops(segment.field, ts) for ts in stage_times(steps, stages).T)
    if isinstance(scheme, AbstractSolver):
        return once * scheme.blocks_made(steps, evaluations) / steps
    return once


def _stack_flops(field: AbstractField, ts: Depths) -> int:
    return _products(eqx.filter_make_jaxpr(lambda field: field.stack(ts))(field)[0].jaxpr)


def _products(jaxpr: Jaxpr) -> int:
    """Of the matrix products of a traced function."""
    total = 0
    for each in jaxpr.eqns:
        if each.primitive.name == "dot_general":
            left: Any = each.invars[0].aval
            made: Any = each.outvars[0].aval
            (contracted, _), _ = each.params["dimension_numbers"]
            total += 2 * made.size * math.prod(left.shape[axis] for axis in contracted)
        trips = each.params["length"] if each.primitive.name == "scan" else 1
        total += trips * sum(map(_products, jaxprs_in_params(each.params)))
    return total
