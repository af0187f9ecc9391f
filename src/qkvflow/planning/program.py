"""A training step of a configuration, compiled for a mesh and never run.

Nothing is allocated: the program is compiled from shapes. Its memory is what XLA's buffer
assignment gave it, per device, and is told apart by what is known of it:

    parameters   the model's arrays
    optimiser    its state, and the few counters beside it
    gradients    as large as the parameters that are trained
    generated    weights along depth that are not parameters themselves, and their gradients
    batch        the tokens of the step
    activations  all the rest: what the backward pass keeps, and workspace
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from qkvflow.distributed.layout import Layout
from qkvflow.distributed.mesh import ROWS, MeshShape, make_mesh
from qkvflow.lm import LanguageModel, count_parameters, num_pieces, weights_in_effect
from qkvflow.planning.hlo import Work, count_work
from qkvflow.runs.config import RunConfig
from qkvflow.schemes import AbstractStepScheme, stage_times
from qkvflow.training.program import make_program
from qkvflow.training.trainable import trained_arrays

# The code of a program that is not run need not be good; its buffers are the same.
_QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device."""

    parameters: int
    optimiser: int
    gradients: int
    generated: int
    batch: int
    activations: int

    @property
    def total(self) -> int:
        return sum(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """What one training step is and needs. Work and memory are of one device."""

    parameters: int
    in_effect: int
    analytic_flops: int
    """Of the whole step on all devices, counted by `lm.accounting`."""
    memory: Memory
    work: Work


def compile_step(config: RunConfig, *, vocab_size: int, mesh: MeshShape) -> CompiledStep:
    """Compile the step on the first devices there are, which may be pretend ones."""
    train, shape = config.train, config.model.config
    layout = Layout(mesh, make_mesh(mesh))
    program = make_program(config, vocab_size, layout)
    model, state = program.model, program.state
    heads = shape.num_heads if "attention" in shape.mixers else None
    layout.check(program.params, train.batch_size, train.grad_accum, num_heads=heads)
    tokens = jax.ShapeDtypeStruct(
        (1, train.batch_size, shape.context),
        jnp.int32,
        sharding=NamedSharding(layout.mesh, PartitionSpec(None, ROWS)),
    )

    def scalar(value: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((), value.dtype, sharding=layout.replicated)

    multi_step = program.multi_step(1, on_device=False)
    lowered = jax.jit(multi_step, donate_argnums=0).lower(
        state, jax.tree.map(scalar, program.hyper()), (tokens, tokens), scalar(np.int32(1))
    )
    compiled = lowered.compile(compiler_options=_QUICKLY)
    rows = train.batch_size // train.grad_accum
    pieces = num_pieces(rows, shape.context, vocab_size, mesh.rows * model.max_logits)
    again = 2 * model.d_model * vocab_size * config.tokens_per_step if pieces > 1 else 0
    return CompiledStep(
        parameters=count_parameters(model).total,
        in_effect=weights_in_effect(model),
        analytic_flops=program.flops_per_step + again,
        memory=_memory(
            compiled, state, _generated(model, layout), 2 * _held(tokens), config.train.trainable
        ),
        work=count_work(compiled.as_text() or ""),
    )


def _memory(compiled: Any, state: Any, generated: int, batch: int, trainable: str) -> Memory:
    analysis = compiled.memory_analysis()
    total = (
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        + analysis.temp_size_in_bytes
        - analysis.alias_size_in_bytes
    )
    parameters = _held(state.params)
    optimiser = _held(state) - parameters
    gradients = _held(eqx.filter(state.params, trained_arrays(state.params, trainable)))
    rest = total - parameters - optimiser - gradients - batch
    # What is known to be needed may be spared by the compiler; it is never more than there is.
    generated = max(0, min(generated, rest))
    return Memory(parameters, optimiser, gradients, generated, batch, max(0, rest - generated))


def _held(tree: Any) -> int:
    """Bytes that one device holds of a tree of shapes with shardings."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        part = leaf.sharding.shard_shape(leaf.shape)
        total += jax.ShapeDtypeStruct(part, leaf.dtype).size * leaf.dtype.itemsize
    return total


def _generated(model: LanguageModel, layout: Layout) -> int:
    """Bytes on one device of the weights made along depth, and of as many gradients.

    Weights that a field only hands out (a layer's own) are parameters and were counted.
    """
    scheme = model.scheme
    if not isinstance(scheme, AbstractStepScheme):
        return 0
    width = jnp.dtype(model.compute_dtype).itemsize
    total = 0
    for ts in stage_times(model.num_steps, scheme.stages).T:
        traced, blocks = jax.make_jaxpr(lambda field, ts=ts: field.stack(ts), return_shape=True)(
            model.field
        )
        given = set(map(id, traced.jaxpr.invars))
        placed = jax.tree.leaves(layout.like(blocks))
        for variable, leaf in zip(traced.jaxpr.outvars, placed, strict=True):
            if id(variable) not in given:
                total += 2 * _held(leaf) * width // leaf.dtype.itemsize
    return total
