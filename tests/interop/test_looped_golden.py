"""Looped entries of the zoo give the logits of their authors' code on the same weights."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_cases import read_golden
from jaxtyping import Array
from looped_cases import DEPTHS, OPTIONS, blank, filled

from qkvflow.lm import LanguageModel
from qkvflow.lm.loss import exit_log_probabilities
from qkvflow.runs.weights import named_arrays

TOLERANCE = 1e-4


@eqx.filter_jit
def run(model: LanguageModel, tokens: Array) -> Array:
    return model(tokens)


def read(name: str) -> tuple[LanguageModel, Array, np.ndarray, dict[str, np.ndarray]]:
    """The model, tokens, logits by the number of loops, and what else the file holds."""
    settings, tensors, tokens, logits = read_golden(f"looped-{name}")
    # What the file was made with is what is asked for today.
    assert settings == {"entry": name, "depths": list(DEPTHS[name]), **OPTIONS[name]}
    model = blank(settings)
    others = {key: tensors.pop(key) for key in ("state", "weighted") if key in tensors}
    assert tensors.keys() == named_arrays(model).keys()
    return filled(model, tensors), jnp.asarray(tokens), logits, others


@pytest.mark.parametrize("name", DEPTHS)
def test_logits_of_the_authors_code(name: str):
    model, tokens, logits, others = read(name)
    assert logits.std() > 0.5
    if "state" in others:
        # Theirs began from our noise.
        np.testing.assert_allclose(model.trajectory(tokens)[0], others["state"], atol=1e-6)
    found = [run(model.at_depth(depth), tokens) for depth in DEPTHS[name]]
    np.testing.assert_allclose(np.stack(found), logits, rtol=0, atol=TOLERANCE)
    for one, other in zip(logits[1:], logits[:-1], strict=True):
        assert np.abs(one - other).max() > 0.1, "another number of loops gives the same"


def test_exits_of_ouro():
    """Logits weighted by the probability of leaving after each loop."""
    model, tokens, logits, others = read("ouro")
    gate: Any = model.exit_gate

    @eqx.filter_jit
    def probabilities(model: LanguageModel) -> Array:
        gates = jax.vmap(gate)(model.readings(tokens))[..., 0]
        return jnp.exp(exit_log_probabilities(gates))

    p = np.asarray(probabilities(model)).reshape(*logits.shape[:-1], 1)
    assert p.min() > 0.01
    np.testing.assert_allclose((p * logits).sum(0), others["weighted"], rtol=0, atol=TOLERANCE)
