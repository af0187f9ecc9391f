"""N-gram baselines: distributions, a plain reference twin, and published numbers."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from qkvflow.data import Corpus, EncodedCorpus, encode_corpus, get_tokenizer, load_corpus
from qkvflow.data.split import StoredSplit
from qkvflow.errors import UserError
from qkvflow.evaluation import ngrams
from qkvflow.evaluation.ngrams import SMOOTHINGS, NgramModel, mean_losses, ngram_losses


def reference(train: list[int], vocab: int, n: int, history: tuple[int, ...], w: int) -> float:
    """Witten-Bell as the formula reads, counted anew for every question."""
    if n == 0:
        return 1 / vocab
    lower = reference(train, vocab, n - 1, history[1:] if n > 1 else (), w)
    followers = Counter(
        train[i] for i in range(n - 1, len(train)) if tuple(train[i - n + 1 : i]) == history
    )
    total, kinds = sum(followers.values()), len(followers)
    return (followers[w] + kinds * lower) / (total + kinds) if total else lower


def test_witten_bell_is_its_formula():
    rng = np.random.default_rng(0)
    train, held = rng.integers(4, size=60), rng.integers(4, size=40)
    rows = NgramModel.fit(train, 5, 4).log_probabilities(held)
    for n in range(1, 5):
        for i in range(n - 1, len(held)):
            history = tuple(held[i - n + 1 : i].tolist())
            expected = reference(train.tolist(), 5, n, history, int(held[i]))
            assert math.exp(rows[n - 1, i]) == pytest.approx(expected, rel=1e-12)
        for i in range(n - 1):  # Too little history: the best that there is.
            assert rows[n - 1, i] == rows[i, i]


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_probabilities_sum_to_one(smoothing: str):
    rng = np.random.default_rng(1)
    vocab = 7
    train = rng.integers(5, size=300)  # Two tokens are never seen.
    model = NgramModel.fit(train, vocab, 5)
    for _ in range(50):
        history = rng.integers(vocab, size=rng.integers(0, 6))
        rows = [
            model.log_probabilities(np.append(history, w), smoothing=smoothing)[:, -1]
            for w in range(vocab)
        ]
        assert np.allclose(np.exp(rows).sum(axis=0), 1, rtol=1e-12)


def test_add_k_is_its_formula():
    model = NgramModel.fit(np.asarray([0, 1, 0, 1, 0, 2]), 3, 2)
    row = model.log_probabilities(np.asarray([0, 1]), smoothing="add-k", k=0.5)
    assert math.exp(row[0, 0]) == pytest.approx((3 + 0.5) / (6 + 1.5))
    assert math.exp(row[1, 1]) == pytest.approx((2 + 0.5) / (3 + 1.5))


@pytest.mark.parametrize("dense", [0, 1 << 25])
@pytest.mark.parametrize("vocab", [3, 50, 2**58])
def test_ways_of_ranking_agree(dense: int, vocab: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ngrams, "_DENSE_KEYS", dense)
    rng = np.random.default_rng(2)
    keys = rng.integers(min(vocab, 500), size=100)
    unique, rank, counts = ngrams._ranked(keys, vocab)
    expected = np.unique(keys, return_inverse=True, return_counts=True)
    for got, want in zip((unique, rank, counts), expected, strict=True):
        assert np.array_equal(got, want)


def test_scoring_in_parts_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(3)
    model = NgramModel.fit(rng.integers(3, size=500), 3, 4)
    held = rng.integers(3, size=101)
    whole = mean_losses(model, held)
    monkeypatch.setattr(ngrams, "_SCORED_AT_ONCE", 7)
    assert mean_losses(model, held) == pytest.approx(whole, rel=1e-12)
    assert mean_losses(model, held[:0]) == [None] * 4


def test_fewer_tokens_than_the_order():
    for tokens in ([0, 1], [0], [0, 1, 1]):
        model = NgramModel.fit(np.asarray(tokens), 2, 6)
        for held in ([0, 1, 1, 0], [1], [0, 1]):
            assert np.isfinite(model.log_probabilities(np.asarray(held))).all()


def test_a_record_has_what_the_report_reads():
    corpus = Corpus(
        "memory",
        StoredSplit.of("train", [b"the cat sat.\nOn the mat\n" * 20]),
        StoredSplit.of("validation", [b"the mat sat\n"]),
        StoredSplit.of("test", [b"the cat\n"]),
    )
    encoded = encode_corpus(corpus, get_tokenizer("byte", corpus))
    losses = ngram_losses(encoded, max_order=3)
    assert [row["order"] for row in losses] == [1, 2, 3]
    assert all(set(row) == {"order", "smoothing", "validation", "test"} for row in losses)
    assert losses[2]["validation"] < losses[0]["validation"]
    with pytest.raises(UserError, match="did you mean witten-bell"):
        ngram_losses(encoded, smoothings=["wittenbell"])


def encoded(spec: str, tokenizer: str) -> EncodedCorpus:
    corpus = load_corpus(spec)
    return encode_corpus(corpus, get_tokenizer(tokenizer, corpus))


def test_tiny_shakespeare(shared_data: Path):
    path = shared_data / "tinyshakespeare" / "input.txt"
    losses = ngram_losses(encoded(f"file:{path}?split=0.9,0.1", "char"))
    measured = [row["validation"] for row in losses]
    assert measured == pytest.approx([3.35, 2.49, 2.05, 1.77, 1.67, 1.70], abs=0.006)
    assert [row["test"] for row in losses] == [None] * 6


def test_wikitext_2(shared_data: Path):
    folder = shared_data / "wikitext-2"
    spec = f"file:train={folder}/test.txt,validation={folder}/valid.txt"
    measured = [row["validation"] for row in ngram_losses(encoded(spec, "char"))]
    # The unigram depends on how many characters the alphabet is said to have.
    assert measured == pytest.approx([3.20, 2.35, 1.90, 1.57, 1.42, 1.41], abs=0.012)


def test_a_chain_is_learnt_by_its_own_order_and_by_no_other():
    """On a Markov source the right order comes near the floor, and none goes below it."""
    chain = encoded("source:markov?states=4&order=2&length=400000&seed=5", "byte")
    floor = chain.corpus.floor
    assert floor is not None
    losses = [row["test"] for row in ngram_losses(chain)]
    # The spread of a mean over 20,000 tokens, from the scored tokens themselves.
    model = NgramModel.fit(chain.train.tokens, 4, 3)
    scores = model.log_probabilities(chain.test.tokens)[2]
    error = scores.std() / math.sqrt(len(scores))
    assert min(losses) > floor - 4 * error
    assert losses[2] < floor + 4 * error
    assert losses[1] > floor + 0.05


def test_counting_cannot_recall():
    recall = encoded("source:recall?length=60000", "byte")
    assert recall.corpus.floor is not None
    losses = [row["test"] for row in ngram_losses(recall)]
    assert min(losses) > recall.corpus.provenance["floor_without_recall"]
    assert min(losses) > recall.corpus.floor + 0.5
