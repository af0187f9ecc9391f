"""Probes: answers by plain Python, floors by counting, accuracy by hand."""

import dataclasses
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from tiny_models import config_of

from qkvflow.data import encode_corpus, get_tokenizer, load_corpus
from qkvflow.data.corpora import Spec
from qkvflow.data.corpus import Corpus
from qkvflow.errors import UserError
from qkvflow.evaluation.probes import answer_accuracy, measure_probe, wilson
from qkvflow.lm import build_config


def documents(corpus: Corpus) -> list[str]:
    return [document.decode() for document in corpus.train]


def p_hop(text: str, hops: int) -> str:
    """Hop by hop, from the end backwards."""
    shown = re.fullmatch(r"<(.*)\?.", text)
    assert shown is not None
    v, at = shown[1], len(shown[1]) - 1
    for _ in range(hops):
        before = v[:at].rfind(v[at])
        if before < 0:
            return "_"
        at = before + 1
    return v[at]


@pytest.mark.parametrize("hops", [1, 3, 9])
def test_p_hop(hops: int):
    corpus = load_corpus(f"source:p-hop?hops={hops}&sequence=20&length=20000")
    texts = documents(corpus)
    assert len(texts) == 18000 // 23
    assert [text[-1] for text in texts] == [p_hop(text, hops) for text in texts]
    assert corpus.floor == pytest.approx(20 * math.log(4) / 23)
    ends = {text[-1] for text in texts}
    assert ends >= set("abcd")


def test_told_hops():
    """Each number of hops has a symbol in the place of the question mark."""
    corpus = load_corpus("source:p-hop?hops=1-3&sequence=20&length=20000")
    found = [0] * 4
    for text in documents(corpus):
        hops = 1 + "efg".index(text[21])
        found[hops] += 1
        assert text[-1] == p_hop(text[:21] + "?" + text[22:], hops)
    assert min(found[1:]) > 200
    assert corpus.floor == pytest.approx((20 * math.log(4) + math.log(3)) / 23)
    assert corpus.answers is not None
    assert corpus.answers.levels == (1, 2, 3)
    only = Spec.parse(corpus.spec).with_option("hops", corpus.answers.option(3))
    assert {text[21] for text in documents(load_corpus(only))} == {"g"}


def test_several_questions_about_one_sequence():
    """Every document asks each number of hops once, in an order of its own."""
    corpus = load_corpus("source:p-hop?hops=1-3&questions=3&sequence=20&length=20000")
    orders = set()
    for text in documents(corpus):
        asked, answers = text[21::2], text[22::2]
        orders.add(asked)
        for symbol, answer in zip(asked, answers, strict=True):
            assert answer == p_hop(f"{text[:21]}?_", 1 + "efg".index(symbol))
    assert orders == set(map("".join, itertools.permutations("efg")))
    assert corpus.floor == pytest.approx((20 * math.log(4) + math.log(6)) / 27)
    assert corpus.answers is not None
    assert corpus.answers.positions == (22, 24, 26)
    # Of one level there is one question.
    only = Spec.parse(corpus.spec).with_option("hops", corpus.answers.option(2))
    assert {(len(text), text[21]) for text in documents(load_corpus(only))} == {(23, "f")}


@pytest.mark.parametrize(("right", "count"), [(0, 20), (7, 20), (20, 20), (180, 400)])
def test_intervals_of_shares(right: int, count: int):
    ends = scipy.stats.binomtest(right, count).proportion_ci(method="wilson")
    assert wilson(right / count, count) == pytest.approx((ends.low, ends.high), abs=1e-9)


def test_accuracy_by_difficulty():
    corpus = load_corpus("source:addition?numbers=2&digits=1&length=6000")
    encoded = encode_corpus(corpus, get_tokenizer("source", corpus))
    vocab = encoded.tokenizer.vocab_size
    model = build_config(config_of("shared", context=9), vocab_size=vocab, key=jax.random.key(0))
    tokenizer = encoded.tokenizer
    found = measure_probe(model, encoded.test, corpus, tokenizer, name="test", levels=(0, 3, 4))
    assert (found["difficulty"], found["split"]) == ("numbers", "test")
    # Four numbers and their sum are eleven tokens, of which the last is never read.
    assert [each["level"] for each in found["levels"]] == [2, 3]
    assert [each["trained"] for each in found["levels"]] == [True, False]
    assert found["left_out"] == [0, 4]
    other = load_corpus("source:addition?numbers=3&digits=1&length=6000&seed=0")
    assert other.answers is not None
    by_hand = answer_accuracy(model, encode_corpus(other, tokenizer).test, other.answers)
    for key, value in by_hand._asdict().items():
        assert found["levels"][1][key] == value
    assert found["levels"][1]["floor"] == other.floor
    assert found["low"] <= found["tokens"] <= found["high"]


def test_addition():
    corpus = load_corpus("source:addition?numbers=5&digits=2&length=20000")
    for text in documents(corpus):
        terms, _, total = text.removeprefix("<").partition("=")
        assert sum(map(int, terms.split("+"))) == int(total)
        assert len(total) == 3
    assert corpus.answers is not None
    size = corpus.answers.document_tokens
    assert corpus.answers.positions == (size - 3, size - 2, size - 1)
    assert corpus.floor == pytest.approx(10 * math.log(10) / size)


def test_assignment():
    texts = documents(load_corpus("source:assignment?depth=5&chains=2&length=20000"))
    orders = set()
    for text in texts:
        lines, _, (asked, answer) = text.removeprefix("<").partition(";?")
        given = dict(line.split("=") for line in lines.split(";"))
        assert len(given) == 10
        orders.add(next(iter(given)) in given.values())
        for _ in range(5):
            asked = given[asked]
        assert asked == answer
    assert orders == {True, False}


def test_the_floor_of_assignment_is_the_logarithm_of_its_texts():
    """All texts of a small case occur, equally often: their number is exp(H)."""
    spec = "source:assignment?depth=2&chains=2&names=4&values=2&length=1200000&split=0.98,0.01,0.01"
    corpus = load_corpus(spec)
    assert corpus.floor is not None
    names, counts = np.unique(documents(corpus), return_counts=True)
    size = 4 * 4 + 4
    expected = 0
    for order in itertools.permutations("abcd"):
        # Unordered pairs of chains of two names, values, line orders and questions.
        expected += 1 if order[0] < order[2] else 0
    expected *= 2**2 * math.factorial(4) * 2
    assert corpus.floor * size == pytest.approx(math.log(expected))
    assert len(names) == expected
    mean = counts.mean()
    assert np.sum((counts - mean) ** 2 / mean) < expected + 5 * math.sqrt(2 * expected)


@pytest.mark.parametrize("spec", ["p-hop", "addition", "assignment", "recall"])
def test_accuracy_on_answer_tokens(spec: str):
    corpus = load_corpus(f"source:{spec}?length=40000")
    answers = corpus.answers
    assert answers is not None
    encoded = encode_corpus(corpus, get_tokenizer("source", corpus))
    vocab, size = encoded.tokenizer.vocab_size, answers.document_tokens
    model = build_config(config_of("shared", context=size), vocab_size=vocab, key=jax.random.key(0))
    found = answer_accuracy(model, encoded.validation, answers)
    rows = np.asarray(encoded.validation.tokens).reshape(-1, size)
    # The same by hand: the model's guess at every place before an answer.
    logits = np.asarray(jax.jit(lambda x: model(x))(jnp.asarray(rows, jnp.int32)))
    places = np.array(answers.positions)
    right = logits[:, places - 1].argmax(-1) == rows[:, places]
    assert found.count == len(rows)
    assert found.tokens == pytest.approx(right.mean())
    assert found.documents == pytest.approx(right.all(axis=1).mean())
    assert found.chance == answers.chance


@pytest.mark.parametrize(
    "spec",
    [
        "p-hop?hops=0",
        "p-hop?symbols=1",
        "p-hop?questions=0",
        "p-hop?questions=2",
        "addition?numbers=1",
        "assignment?names=3",
        "p-hop?length=9",
    ],
)
def test_impossible_probes_are_refused(spec: str):
    with pytest.raises(UserError, match="impossible"):
        load_corpus(f"source:{spec}")


def test_other_tokens_are_refused():
    corpus = load_corpus("source:p-hop?length=10000")
    assert corpus.answers is not None
    encoded = encode_corpus(corpus, get_tokenizer("source", corpus))
    model = build_config(config_of("shared"), vocab_size=7, key=jax.random.key(0))
    shifted = dataclasses.replace(corpus.answers, document_tokens=63)
    with pytest.raises(UserError, match="whole documents"):
        answer_accuracy(model, encoded.train, shifted)
