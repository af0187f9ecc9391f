"""Accuracy of a model on the answers of a probe.

Documents are read from their first token on, one in a window, whatever context the model was
trained with; an answer is right where the most likely token is it, given everything before it.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from qkvflow.data import TokenArray
from qkvflow.data.corpus import Answers
from qkvflow.errors import UserError
from qkvflow.lm import LanguageModel

BATCH = 64


class Accuracy(NamedTuple):
    tokens: float
    """Share of the answer tokens that are right."""
    standard_error: float
    """Of `tokens`, over documents."""
    documents: float
    """Share of the documents whose answers are all right."""
    count: int
    """Documents."""
    chance: float
    """Of a guess among the symbols that an answer can be, per token."""


def answer_accuracy(
    model: LanguageModel, split: TokenArray, answers: Answers, *, max_documents: int = 4096
) -> Accuracy:
    """On a split that is whole documents (the tokens of the corpus's own alphabet)."""
    size = answers.document_tokens
    total = len(split) // size
    if not total or len(split) % size:
        raise UserError(
            f"{len(split)} tokens are not whole documents of {size}; evaluate probes with the "
            "tokenizer they bring (--data.tokenizer source)"
        )
    count = min(total, max_documents)
    rows = np.asarray(split.tokens[: total * size]).reshape(total, size)
    rows = rows[np.arange(count) * total // count].astype(np.int32)
    padded = np.concatenate([rows, np.zeros((-count % BATCH, size), np.int32)])
    places = jnp.asarray(answers.positions)
    right = [
        np.asarray(_right(model, jnp.asarray(batch), places))
        for batch in padded.reshape(-1, BATCH, size)
    ]
    each = np.concatenate(right)[:count]
    means = each.mean(axis=1)
    error = float(means.std(ddof=1) / math.sqrt(count)) if count > 1 else 0.0
    whole = float(each.all(axis=1).mean())
    return Accuracy(float(means.mean()), error, whole, count, answers.chance)


@eqx.filter_jit
def _right(
    model: LanguageModel, rows: Int[Array, "batch size"], places: Int[Array, " answers"]
) -> Bool[Array, "batch answers"]:
    guesses = jnp.argmax(model(rows[:, :-1]), axis=-1)
    return guesses[:, places - 1] == rows[:, places]
