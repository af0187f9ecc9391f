"""What probes share: documents of one length whose answers stand at fixed places."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qkvflow.data.corpora.base import Spec
from qkvflow.data.corpora.parts.division import DEFAULT_SHARES
from qkvflow.data.corpus import SPLITS, Answers, Corpus
from qkvflow.data.split import StoredSplit
from qkvflow.data.tokenizers.char import CharTokenizer
from qkvflow.errors import UserError


def probe_corpus(
    spec: Spec,
    sample: Callable[[int, np.random.Generator], np.ndarray],
    *,
    alphabet: str,
    entropy: float,
    answers: Answers,
    seed: int,
    length: int,
    options: Mapping[str, Any],
) -> Corpus:
    """`sample(documents, rng)` gives documents as rows of indices into the alphabet; `entropy` is a
    document's, in nats. `length` tokens in all three splits, rounded down to whole documents."""
    size = answers.document_tokens
    if length < size or seed < 0:
        raise UserError(
            f"'{spec.text}' is impossible; length is at least a document's {size} tokens and seed "
            "not negative"
        )
    letters = np.array(list(alphabet))
    splits = []
    for part, share in enumerate(spec.fractions(DEFAULT_SHARES)):
        rng = np.random.default_rng([seed, 1 + part])
        rows = sample(round(length * share) // size, rng)
        texts = ("".join(row).encode() for row in letters[rows])
        splits.append(StoredSplit.of(f"{spec.text} ({SPLITS[part]})", texts))
    return Corpus(
        spec.with_seed(seed),
        *splits,
        floor=entropy / size,
        provenance={**options, "length": length, "seed": seed, "document_tokens": size},
        tokenizer=CharTokenizer(alphabet, name="source"),
        answers=answers,
    )
