"""`source:recall`: multi-query associative recall (Arora et al., Zoology, 2023), with its floor.

A document shows P pairs of a key and a value and then asks for Q of them:

    <  k_1 v_1 .. k_P v_P  ?  q_1 a_1 .. q_Q a_Q

The keys are P different ones of K, in uniformly random order; each value is uniform on V symbols;
each query is uniform on the P keys shown; its answer is the value shown with that key. Documents
are independent and follow one another without a gap. Entropy by the chain rule, in nats:

    the two markers              0           (their positions are fixed)
    key i, i = 1 .. P            ln(K-i+1)   (uniform on the keys not shown yet)
    value i                      ln V
    query                        ln P        (uniform on the keys shown)
    answer                       0           (determined)

so a document of L = 2 + 2P + 2Q tokens carries H = sum ln(K-i+1) + P ln V + Q ln P, and the
entropy rate of the stream is exactly H / L nats per token. A model of any context cannot do
better in the mean; one whose windows are aligned with documents (context = L, as a full pass in
windows of L is) can reach it. Without recall each answer costs ln V: that much is gained by
looking back, and it is in the provenance as `floor_without_recall` = (H + Q ln V) / L.

Options: `pairs` (8), `queries` (23: L = 64), `keys` (32), `values` (32), `length` (200000 tokens
in all three splits, rounded down to whole documents), `seed`, `split`.
"""

import math
from pathlib import Path
from typing import ClassVar

import numpy as np

from qkvflow.data.corpora.base import CorpusKind, Spec, refuse_data_dir
from qkvflow.data.corpora.parts.division import DEFAULT_SHARES
from qkvflow.data.corpora.parts.symbols import LARGEST, symbols
from qkvflow.data.corpus import SPLITS, Answers, Corpus
from qkvflow.data.split import StoredSplit
from qkvflow.data.tokenizers.char import CharTokenizer
from qkvflow.errors import UserError
from qkvflow.zoo.registry import CORPORA

_MARKERS = "<?"


@CORPORA.register("recall")
class Recall(CorpusKind):
    """Seeded multi-query associative recall."""

    usages: ClassVar[tuple[str, ...]] = ("source:recall",)

    def accepts(self, spec: Spec) -> bool:
        return (spec.kind, spec.body) == ("source", "recall")

    def load(self, spec: Spec, *, data_dir: Path | None, seed: int) -> Corpus:
        refuse_data_dir(spec, data_dir)
        spec.allow(("pairs", "queries", "keys", "values", "length", "seed", "split"))
        pairs = spec.option("pairs", int, 8)
        queries = spec.option("queries", int, 23)
        keys = spec.option("keys", int, 32)
        values = spec.option("values", int, 32)
        length = spec.option("length", int, 200_000)
        seed = spec.option("seed", int, seed)
        if min(pairs, queries, values, length) < 1 or keys < pairs or seed < 0:
            raise UserError(
                f"'{spec.text}' is impossible; pairs, queries, values and length are at least 1, "
                "keys at least pairs and seed not negative"
            )
        if keys + values > LARGEST:
            raise UserError(f"'{spec.text}' has more than {LARGEST} symbols; take fewer")
        size = 2 + 2 * pairs + 2 * queries
        alphabet = _MARKERS + symbols(keys + values)
        splits = []
        for part, share in enumerate(spec.fractions(DEFAULT_SHARES)):
            rng = np.random.default_rng([seed, 1 + part])
            drawn = sample(round(length * share) // size, pairs, queries, keys, values, rng)
            texts = ("".join(alphabet[i] for i in row).encode() for row in drawn.tolist())
            splits.append(StoredSplit.of(f"{spec.text} ({SPLITS[part]})", texts))
        entropy = document_entropy(pairs, queries, keys, values)
        return Corpus(
            spec.with_seed(seed),
            splits[0],
            splits[1],
            splits[2],
            floor=entropy / size,
            provenance={
                "pairs": pairs,
                "queries": queries,
                "keys": keys,
                "values": values,
                "length": length,
                "seed": seed,
                "document_tokens": size,
                "floor_without_recall": (entropy + queries * math.log(values)) / size,
            },
            tokenizer=CharTokenizer(alphabet, name="source"),
            answers=Answers(
                size, tuple(range(3 + 2 * pairs, size, 2)), 1.0 / values, "pairs", (pairs,)
            ),
        )


def document_entropy(pairs: int, queries: int, keys: int, values: int) -> float:
    """H of the derivation above, in nats."""
    shown = sum(math.log(keys - i) for i in range(pairs)) + pairs * math.log(values)
    return shown + queries * math.log(pairs)


def sample(
    documents: int, pairs: int, queries: int, keys: int, values: int, rng: np.random.Generator
) -> np.ndarray:
    """Documents as rows of ids: 0 and 1 the markers, then the keys, then the values."""
    rows = np.empty((documents, 2 + 2 * pairs + 2 * queries), dtype=np.int64)
    order = np.argsort(rng.random((documents, keys)), axis=1)
    shown = 2 + order[:, :pairs]
    answers = 2 + keys + rng.integers(values, size=(documents, pairs))
    asked = rng.integers(pairs, size=(documents, queries))
    middle = 1 + 2 * pairs
    rows[:, 0], rows[:, middle] = 0, 1
    rows[:, 1:middle:2], rows[:, 2:middle:2] = shown, answers
    rows[:, middle + 1 :: 2] = np.take_along_axis(shown, asked, axis=1)
    rows[:, middle + 2 :: 2] = np.take_along_axis(answers, asked, axis=1)
    return rows
