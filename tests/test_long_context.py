"""What a training step holds at long contexts, measured from compiled programs."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from qkvflow.lm import abstract, loss
from qkvflow.zoo import configure, entry

LENGTHS = (1024, 2048, 4096, 8192)


def step_bytes(name: str, context: int) -> int:
    """Bytes of temporaries of a loss and its gradient for one sequence."""
    shape = {"d_model": 32, "num_heads": 2, "context": context, "num_steps": 2}
    model = abstract(configure(entry(name), shape), vocab_size=64)
    params, static = eqx.partition(model, lambda x: isinstance(x, jax.ShapeDtypeStruct))
    tokens = jax.ShapeDtypeStruct((1, context), jnp.int32)

    def objective(params: Any, inputs: Any, targets: Any) -> Any:
        return loss(eqx.combine(params, static), inputs, targets)

    program = jax.jit(jax.value_and_grad(objective)).lower(params, tokens, tokens).compile()
    analysis = program.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


@pytest.mark.parametrize("name", ["standard", "standard-llama"])
def test_attention_takes_memory_linear_in_the_context(name: str):
    sizes = [step_bytes(name, context) for context in LENGTHS]
    increments = [after - before for before, after in itertools.pairwise(sizes)]
    # Twice as many tokens more each time, and the square of the scores would be four times as much.
    # Not exactly two, because the moment at which most is held is not the same at all lengths.
    for before, after in itertools.pairwise(increments):
        assert 1.8 < after / before < 2.4
    assert sizes[-1] <= 9 * sizes[0]
    # Not even one head's scores of the whole square.
    assert sizes[-1] < 8192 * 8192 * 4


@pytest.mark.parametrize("name", ["mamba", "time-indexed-ssm"])
def test_state_space_layers_take_memory_linear_in_the_context(name: str):
    assert step_bytes(name, 8192) <= 9 * step_bytes(name, 1024)
