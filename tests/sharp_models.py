"""Tiny models and the plain computation that generation is compared with."""

import dataclasses
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import qkvflow
from qkvflow.lm import LanguageModel

VOCAB = 17
TINY: dict[str, Any] = {
    "d_model": 32,
    "num_steps": 2,
    "num_heads": 2,
    "context": 32,
    "d_state": 8,
    "d_time": 8,
    "num_frequencies": 4,
    "rank": 2,
    "num_basis": 2,
    # As many as have an order.
    "layers_per_loop": 2,
    # Large, so that predictions differ from token to token and depend on the past.
    "init_std": 0.3,
}


@cache
def tiny(name: str, **overrides: Any) -> LanguageModel:
    shape = {**TINY, **overrides}
    model = qkvflow.build(name, vocab_size=VOCAB, key=jax.random.key(1), **shape)
    # A fresh model's predictions are nearly uniform: make them as sharp as a trained one's.
    head = None if model.head is None else 5.0 * model.head
    return dataclasses.replace(model, embedding=5.0 * model.embedding, head=head)


_forward = eqx.filter_jit(lambda model, tokens: model(tokens))


def full_logits(model: LanguageModel, tokens: list[int]) -> np.ndarray:
    """Logits after every token by one full forward pass."""
    return np.asarray(_forward(model, jnp.asarray([tokens]))[0])


def greedy(model: LanguageModel, prompt: list[int], new: list[int]) -> list[int]:
    """What a full forward pass over the same tokens predicts at each of the new positions."""
    logits = full_logits(model, prompt + new)
    return np.argmax(logits[len(prompt) - 1 : -1], axis=-1).tolist()


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(VOCAB, size=length).tolist()
