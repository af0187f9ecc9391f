"""Equal logits and gradients: live against `transformers`, and against golden checkpoints."""

import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_cases import CASES, KEPT, VOCAB, random_tokens, read_golden

from qkvflow import loss
from qkvflow.interop import config_from_huggingface, from_huggingface, to_huggingface
from qkvflow.lm import LanguageModel, abstract, count_parameters

TOLERANCE = 1e-4
SHORT = ("gpt2", "gpt_neox", "qwen3", "mamba2")
"""The cases that are also run on single tokens."""


@eqx.filter_jit
def run(model: LanguageModel, tokens: jnp.ndarray) -> jnp.ndarray:
    return model(tokens)


def difference(model: LanguageModel, tokens: np.ndarray, logits: np.ndarray) -> float:
    return float(np.abs(np.asarray(run(model, jnp.asarray(tokens))) - logits).max())


@pytest.mark.parametrize("name", KEPT)
def test_golden_logits(name: str):
    settings, tensors, tokens, logits = read_golden(name)
    assert logits.std() > 0.1
    assert difference(from_huggingface(settings, tensors), tokens, logits) < TOLERANCE


@pytest.mark.parametrize("name", KEPT)
def test_golden_round_trip(name: str, tmp_path: Path):
    settings, tensors, tokens, logits = read_golden(name)
    config = config_from_huggingface(settings)
    to_huggingface(from_huggingface(settings, tensors), config, tmp_path)
    again = from_huggingface(tmp_path)
    assert difference(again, tokens, logits) < TOLERANCE
    written = json.loads((tmp_path / "config.json").read_text())
    assert config_from_huggingface(tmp_path) == config_from_huggingface(written)
    assert count_parameters(again) == count_parameters(abstract(config, vocab_size=VOCAB))


@pytest.mark.peers
@pytest.mark.parametrize("name", CASES)
def test_live_logits(name: str):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from hf_peers import logits_of, random_model, tensors_of

    for seed in (0, 1, 2):
        theirs = random_model(CASES[name], seed)
        ours = from_huggingface(theirs.config.to_dict(), tensors_of(theirs))
        for seq in (1, 11) if name in SHORT else (11,):
            tokens = random_tokens(seed + 10 * seq, seq)
            logits = logits_of(theirs, tokens)
            assert logits.std() > 0.1
            assert difference(ours, tokens, logits) < TOLERANCE


@pytest.mark.peers
@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "qwen3", "mamba2-groups"])
def test_live_gradients(name: str):
    """The gradient of the loss with respect to the embedding, and to all the rest."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from hf_peers import random_model, tensors_of

    theirs = random_model(CASES[name], 3)
    settings = theirs.config.to_dict()
    ours = from_huggingface(settings, tensors_of(theirs))
    tokens = random_tokens(3, 12)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    logits = theirs(torch.tensor(inputs, dtype=torch.long), use_cache=False).logits
    wanted = torch.tensor(targets.copy(), dtype=torch.long).reshape(-1)
    torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), wanted).backward()
    gradients = {
        key: np.zeros(value.shape, np.float32) if value.grad is None else value.grad.numpy()
        for key, value in theirs.named_parameters()
    }
    # A gradient has the shape of its parameter, so the loader carries it over as well.
    expected = from_huggingface(settings, gradients)
    found = eqx.filter_jit(eqx.filter_grad(loss))(ours, jnp.asarray(inputs), jnp.asarray(targets))
    assert np.abs(expected.embedding).max() > 1e-2
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4)
