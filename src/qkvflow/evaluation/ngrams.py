"""N-gram baselines: what counting alone reaches, to stand beside every model.

Witten-Bell (Chen and Goodman, An Empirical Study of Smoothing Techniques, 1998), interpolated:

    P_n(w | h) = (c(h w) + T(h) P_{n-1}(w | h')) / (c(h) + T(h)),    P_0 = 1 / vocabulary,

with c the counts in the train split, T(h) the number of different tokens seen after h, and h' the
history h without its oldest token. A history never seen leaves P_n = P_{n-1}.

Add-k, not interpolated: P_n(w | h) = (c(h w) + k) / (c(h) + k vocabulary).

Every n-gram of the train split gets a rank, and the n-gram that extends it is the pair of that
rank and the next token: one integer, so that all counting is sorting or `bincount` on integers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkvflow.data.encode import EncodedCorpus
from qkvflow.errors import unknown

SMOOTHINGS = ("witten-bell", "add-k")
# Counting needs some 50 bytes per token and order; more text than this is sampled from the front.
MOST_TOKENS = 20_000_000
_DENSE_KEYS = 1 << 25
_SCORED_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class _Order:
    """Counts of one order: sorted keys `history * vocab + token` with counts, and histories'."""

    keys: np.ndarray
    counts: np.ndarray
    history_counts: np.ndarray
    followers: np.ndarray


@dataclass(frozen=True)
class NgramModel:
    """Counts of every order up to a largest one."""

    vocab_size: int
    orders: Sequence[_Order]

    @classmethod
    def fit(cls, tokens: np.ndarray, vocab_size: int, max_order: int) -> "NgramModel":
        """Count the n-grams of a sequence."""
        words = np.asarray(tokens).astype(np.int64)
        history = np.zeros(len(words), dtype=np.int64)
        histories: int = 1
        orders: list[_Order] = []
        for _ in range(max_order):
            keys = history * vocab_size + words[len(words) - len(history) :]
            unique, rank, counts = _ranked(keys, histories * vocab_size)
            owners = unique // vocab_size
            orders.append(
                _Order(
                    unique,
                    counts,
                    np.bincount(owners, weights=counts, minlength=histories),
                    np.bincount(owners, minlength=histories),
                )
            )
            # The n-gram that ends at i is the history of token i + 1.
            history, histories = rank[:-1], max(len(unique), 1)
        return cls(vocab_size, orders)

    def log_probabilities(
        self, tokens: np.ndarray, *, smoothing: str = "witten-bell", k: float = 0.1
    ) -> np.ndarray:
        """ln P_n of every token given those before it, a row for each order n.

        The first tokens have fewer than n - 1 before them and are scored with what there is.
        """
        if smoothing not in SMOOTHINGS:
            raise unknown("smoothing", smoothing, SMOOTHINGS)
        words = np.asarray(tokens).astype(np.int64)
        history = np.zeros(len(words), dtype=np.int64)
        lower = np.full(len(words), 1 / self.vocab_size)
        rows = []
        for order in self.orders:
            rank, counts = _look_up(order, history, words, self.vocab_size)
            known = history >= 0
            total = np.where(known, order.history_counts[history], 0)
            # The first tokens have no history of this length: the lower order is their best.
            usable = np.arange(len(words)) >= len(rows)
            if smoothing == "witten-bell":
                kinds = np.where(known, order.followers[history], 0)
                mixed = (counts + kinds * lower) / np.maximum(total + kinds, 1)
                # The last history of the train split is known, but nothing was seen after it.
                usable &= kinds > 0
            else:
                mixed = (counts + k) / (total + k * self.vocab_size)
            lower = np.where(usable, mixed, lower)
            rows.append(np.log(lower))
            history = np.concatenate([np.full(min(1, len(words)), -1), rank[:-1]])
        return np.stack(rows)


def ngram_losses(
    encoded: EncodedCorpus,
    max_order: int = 6,
    smoothings: Sequence[str] = ("witten-bell",),
    *,
    k: float = 0.1,
    max_tokens: int = MOST_TOKENS,
) -> list[dict[str, Any]]:
    """Nats per token of each order on validation and test (None where a split is empty), with
    counts from the train split, or from its first `max_tokens` tokens."""
    tokens = encoded.train.tokens[:max_tokens]
    model = NgramModel.fit(tokens, encoded.tokenizer.vocab_size, max_order)
    rows = []
    for smoothing in smoothings:
        losses = {
            name: mean_losses(model, getattr(encoded, name).tokens, smoothing=smoothing, k=k)
            for name in ("validation", "test")
        }
        rows += [
            {
                "order": n + 1,
                "smoothing": smoothing,
                **{name: value[n] for name, value in losses.items()},
            }
            for n in range(max_order)
        ]
    return rows


def mean_losses(
    model: NgramModel, tokens: np.ndarray, *, smoothing: str = "witten-bell", k: float = 0.1
) -> list[float] | list[None]:
    """Mean of - ln P_n over all tokens, for each order."""
    orders = len(model.orders)
    if not len(tokens):
        return [None] * orders
    sums: list[list[float]] = [[] for _ in range(orders)]
    for start in range(0, len(tokens), _SCORED_AT_ONCE):
        # A few tokens before the part give its first tokens their history.
        lead = min(start, orders)
        part = tokens[start - lead : start + _SCORED_AT_ONCE]
        scored = model.log_probabilities(part, smoothing=smoothing, k=k)[:, lead:]
        for n in range(orders):
            sums[n].append(float(scored[n].sum()))
    return [-math.fsum(parts) / len(tokens) for parts in sums]


def _ranked(keys: np.ndarray, bound: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The different keys in order, the rank of each key among them, and their counts."""
    if bound <= max(_DENSE_KEYS, 4 * len(keys)):
        # A table of every possible key is faster than sorting while it is small.
        table = np.bincount(keys, minlength=1)
        unique = np.flatnonzero(table)
        ranks = np.empty(len(table), dtype=np.int64)
        ranks[unique] = np.arange(len(unique))
        return unique, ranks[keys], table[unique]
    shift = len(keys).bit_length()
    if bound.bit_length() + shift > 63:
        unique, rank, counts = np.unique(keys, return_inverse=True, return_counts=True)
        return unique, rank, counts
    # Sorting a key and its position as one integer is several times as fast as an argsort.
    packed = np.sort((keys << shift) | np.arange(len(keys)))
    ordered = packed >> shift
    first = np.flatnonzero(np.diff(ordered, prepend=-1))
    counts = np.diff(first, append=len(keys))
    rank = np.empty(len(keys), dtype=np.int64)
    rank[packed & ((1 << shift) - 1)] = np.repeat(np.arange(len(first)), counts)
    return ordered[first], rank, counts


def _look_up(
    order: _Order, history: np.ndarray, words: np.ndarray, vocab_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rank (-1 if never seen) and count of each n-gram."""
    keys = np.where(history >= 0, history * vocab_size + words, -1)
    if not len(order.keys):
        return np.full(len(keys), -1), np.zeros(len(keys))
    place = np.minimum(np.searchsorted(order.keys, keys), len(order.keys) - 1)
    seen = order.keys[place] == keys
    return np.where(seen, place, -1), np.where(seen, order.counts[place], 0)
