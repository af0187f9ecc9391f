"""Sources: the floor by independent means, and the text they say they give."""

import itertools
import math

import numpy as np
import pytest

from qkvflow.data import encode_corpus, get_tokenizer, load_corpus
from qkvflow.data.corpora.markov import (
    conditional_entropies,
    sample,
    stationary,
    transition_table,
)
from qkvflow.data.corpora.parts.symbols import LARGEST, symbols
from qkvflow.errors import UserError


def full_matrix(table: np.ndarray) -> np.ndarray:
    """Context to context, written out."""
    contexts, states = table.shape
    matrix = np.zeros((contexts, contexts))
    for context, symbol in itertools.product(range(contexts), range(states)):
        matrix[context, (context * states + symbol) % contexts] += table[context, symbol]
    return matrix


@pytest.mark.parametrize(("states", "order"), [(2, 1), (5, 1), (3, 2), (2, 4), (8, 2)])
def test_the_entropy_rate_by_an_eigenvector(states: int, order: int):
    table = transition_table(states, order, 0.3, seed=4)
    values, vectors = np.linalg.eig(full_matrix(table).T)
    leading = np.real(vectors[:, np.argmax(np.real(values))])
    leading /= leading.sum()
    assert stationary(table) == pytest.approx(leading, abs=1e-11)
    rate = sum(leading[c] * -(row * np.log(row)).sum() for c, row in enumerate(table))
    entropies = conditional_entropies(table, stationary(table))
    assert entropies[-1] == pytest.approx(rate, abs=1e-11)
    assert len(entropies) == order + 1
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(entropies))


def test_the_entropy_rate_of_a_chain_known_by_hand():
    p, q = 0.2, 0.5
    table = np.asarray([[1 - p, p], [q, 1 - q]])
    binary = [-x * math.log(x) - (1 - x) * math.log(1 - x) for x in (p, q)]
    expected = (q * binary[0] + p * binary[1]) / (p + q)
    assert conditional_entropies(table, stationary(table))[-1] == pytest.approx(expected)


def test_a_long_run_has_that_entropy():
    table = transition_table(4, 2, 0.5, seed=9)
    start = stationary(table)
    drawn = np.asarray(sample(table, start, 200_000, np.random.default_rng(0)))
    contexts = drawn[:-2] * 4 + drawn[1:-1]
    surprise = -np.log(table[contexts, drawn[2:]])
    error = surprise.std() / math.sqrt(len(surprise)) * 3  # Tokens are not independent.
    rate = conditional_entropies(table, start)[-1]
    assert surprise.mean() == pytest.approx(rate, abs=4 * error)
    assert error < 0.01
    shares = np.bincount(contexts, minlength=16) / len(contexts)
    assert shares == pytest.approx(start, abs=0.01)


def test_the_splits_of_a_chain_are_independent_and_seeded():
    spec = "source:markov?states=8&order=2&length=20000&seed=1"
    corpus = load_corpus(spec)
    assert (corpus.train.bytes, corpus.validation.bytes, corpus.test.bytes) == (18000, 1000, 1000)
    assert corpus.validation[0] != corpus.test[0]
    assert corpus.train[0].find(corpus.validation[0][:50]) == -1
    assert load_corpus(spec, seed=5).sha256 == corpus.sha256
    assert load_corpus("source:markov?length=20000", seed=1).sha256 == corpus.sha256
    assert load_corpus("source:markov?length=20000", seed=2).sha256 != corpus.sha256
    assert load_corpus("source:markov?length=20000", seed=2).spec.endswith("&seed=2")


def test_a_source_brings_its_tokens():
    corpus = load_corpus("source:markov?states=5&length=1000")
    for spec in ("byte", "char", "source"):
        tokenizer = get_tokenizer(spec, corpus)
        assert (tokenizer.vocab_size, tokenizer.name) == (5, "source")
    encoded = encode_corpus(corpus, get_tokenizer("byte", corpus))
    assert len(encoded.train) == 900
    assert encoded.train.tokens.max() < 5
    assert encoded.describe()["floor"] == corpus.floor
    with pytest.raises(UserError, match="brings its own tokens"):
        get_tokenizer("bpe:300", corpus)


def parse_recall(row: list[int], pairs: int, keys: int) -> tuple[list[int], list[int], list[int]]:
    assert row[0] == 0
    assert row[1 + 2 * pairs] == 1
    shown = dict(zip(row[1 : 1 + 2 * pairs : 2], row[2 : 2 + 2 * pairs : 2], strict=True))
    assert len(shown) == pairs, "keys differ"
    assert all(2 <= k < 2 + keys for k in shown)
    assert all(v >= 2 + keys for v in shown.values())
    asked, answers = row[2 + 2 * pairs :: 2], row[3 + 2 * pairs :: 2]
    assert answers == [shown[q] for q in asked]
    return list(shown), list(shown.values()), asked


def test_recall_documents_are_what_the_derivation_says():
    corpus = load_corpus("source:recall?pairs=3&queries=4&keys=5&values=2&length=50000&seed=3")
    encoded = encode_corpus(corpus, get_tokenizer("byte", corpus))
    rows = encoded.train.tokens.reshape(-1, 16).tolist()
    parsed = [parse_recall(row, 3, 5) for row in rows]
    # Uniform: ordered triples of keys, values and queried places, by chi-square at p ~ 0.001.
    for items, count, limit in (
        ([tuple(p[0]) for p in parsed], 60, 98.3),
        ([v for p in parsed for v in p[1]], 2, 10.8),
        ([p[0].index(q) for p in parsed for q in p[2]], 3, 13.8),
    ):
        _, counts = np.unique(items, return_counts=True, axis=0)
        assert len(counts) == count
        expected = len(items) / count
        assert ((counts - expected) ** 2 / expected).sum() < limit


def test_the_floor_of_recall_by_enumeration():
    """Every document of a tiny source, with its probability: the entropy is a plain sum."""
    pairs, queries, keys, values = 2, 2, 3, 2
    documents: dict[tuple, float] = {}
    for shown in itertools.permutations(range(keys), pairs):
        for given in itertools.product(range(values), repeat=pairs):
            for asked in itertools.product(range(pairs), repeat=queries):
                text = (shown, given, tuple((shown[a], given[a]) for a in asked))
                probability = 1 / (6 * values**pairs * pairs**queries)
                documents[text] = documents.get(text, 0.0) + probability
    assert sum(documents.values()) == pytest.approx(1)
    entropy = -sum(p * math.log(p) for p in documents.values())
    corpus = load_corpus("source:recall?pairs=2&queries=2&keys=3&values=2&length=1000")
    assert corpus.floor == pytest.approx(entropy / 10)


def test_default_recall_documents_are_64_tokens():
    corpus = load_corpus("source:recall?length=10000")
    encoded = encode_corpus(corpus, get_tokenizer("byte", corpus))
    assert corpus.provenance["document_tokens"] == 64
    assert len(encoded.train) == 64 * corpus.train.documents
    assert encoded.train.tokens.reshape(-1, 64)[:, 0].max() == 0


def test_symbols_all_differ():
    assert len(set(symbols(LARGEST))) == LARGEST
    assert symbols(3) == "abc"


@pytest.mark.parametrize(
    "spec",
    [
        "source:markov?states=1",
        "source:markov?order=0",
        "source:markov?states=1000&order=3",
        "source:markov?states=two",
        "source:markov?state=2",
        "source:markov?concentration=nan",
        "source:markov?seed=-1",
        "source:markov?length",
        "source:recall?keys=2&pairs=3",
        "source:recall?values=0",
        "source:recall?keys=30000",
        "source:",
        "source:text",
    ],
)
def test_impossible_sources_are_refused_in_one_line(spec: str):
    with pytest.raises(UserError) as caught:
        load_corpus(spec)
    assert "\n" not in str(caught.value)
