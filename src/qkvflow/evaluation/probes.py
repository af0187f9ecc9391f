"""Accuracy of a model on the answers of a probe.

Documents are read from their first token on, one in a window, whatever context the model was
trained with; an answer is right where the most likely token is it, given everything before it.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from qkvflow.data import TokenArray, load_corpus
from qkvflow.data.corpora import Spec
from qkvflow.data.corpus import Answers, Corpus
from qkvflow.data.encode import encode_split
from qkvflow.data.tokenizers import Tokenizer
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
    low: float
    high: float
    """95 % interval of `tokens`, over documents (Wilson's, so that 0 and 1 have a width)."""


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
    mean = float(means.mean())
    # Answers of a document are not independent: as many as would have this error, were they.
    independent = mean * (1.0 - mean) / error**2 if error and 0.0 < mean < 1.0 else count
    return Accuracy(mean, error, whole, count, answers.chance, *wilson(mean, independent))


def wilson(share: float, count: int | float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of `count` independent trials."""
    z = 1.959963984540054
    middle = share + z**2 / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    low, high = ((middle + sign * half) / (1 + z**2 / count) for sign in (-1, 1))
    return low, high


def measure_probe(
    model: LanguageModel,
    split: TokenArray,
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    name: str,
    levels: Sequence[int] = (),
) -> dict[str, Any]:
    """Accuracy on a split of a probe, and on the same split of the source at other difficulties:
    `accuracy` in docs/records.md. Levels whose documents the model has no positions or no symbols
    for are `left_out`."""
    answers = corpus.answers
    assert answers is not None
    own = answer_accuracy(model, split, answers)
    found, left_out = [], []
    for level in sorted({*answers.levels, *levels}):
        made, floor = own, corpus.floor
        if answers.levels != (level,):
            spec = Spec.parse(corpus.spec).with_option(answers.difficulty, answers.option(level))
            try:
                other = load_corpus(spec)
                tokens = encode_split(getattr(other, name), tokenizer)
            except UserError:  # No such documents, or more hops than there are symbols for.
                left_out.append(level)
                continue
            assert other.answers is not None
            if model.positions is not None and other.answers.document_tokens > model.context + 1:
                left_out.append(level)
                continue
            made, floor = answer_accuracy(model, tokens, other.answers), other.floor
        trained = level in answers.levels
        found.append({"level": level, "trained": trained, **made._asdict(), "floor": floor})
    return {
        "split": name,
        "difficulty": answers.difficulty,
        "floor": corpus.floor,
        **own._asdict(),
        "levels": found,
        "left_out": left_out,
    }


@eqx.filter_jit
def _right(
    model: LanguageModel, rows: Int[Array, "batch size"], places: Int[Array, " answers"]
) -> Bool[Array, "batch answers"]:
    guesses = jnp.argmax(model(rows[:, :-1]), axis=-1)
    return guesses[:, places - 1] == rows[:, places]
