"""`source:markov`: a random Markov chain of order k, whose entropy rate is known exactly.

The next symbol x follows a context c of k symbols with probability P(x | c), one row of the table
per context, each drawn from a symmetric Dirichlet distribution. All entries are positive, so the
chain of contexts has one stationary distribution pi, the solution of

    pi(c_2 .. c_k x) = sum over c_1 of pi(c_1 .. c_k) P(x | c_1 .. c_k),

and the entropy rate, the least loss any model can have in the mean, is

    h = - sum over c, x of pi(c) P(x | c) ln P(x | c)    nats per token.

A model that sees j < k symbols can reach no better than h_j = H(X_{j+1} | X_1 .. X_j) >= h; these
are in the provenance as `conditional_entropies` (j = 0 .. k). A window of length C, whose first
target has one symbol before it, has the floor mean of h_min(j, k) over j = 1 .. C.

Options: `states` (8), `order` (2), `length` (200000 symbols in all three splits), `concentration`
of the Dirichlet distribution (0.3; smaller is more predictable), `seed`, `split`. The splits are
independent stretches of the same chain, each started from pi.
"""

from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import ClassVar

import numpy as np

from qkvflow.data.corpora.base import CorpusKind, Spec, refuse_data_dir
from qkvflow.data.corpora.parts.division import DEFAULT_SHARES
from qkvflow.data.corpora.parts.symbols import symbols
from qkvflow.data.corpus import SPLITS, Corpus
from qkvflow.data.split import StoredSplit
from qkvflow.data.tokenizers.char import CharTokenizer
from qkvflow.errors import UserError
from qkvflow.zoo.registry import CORPORA

_LARGEST_TABLE = 10_000_000


@CORPORA.register("markov")
class Markov(CorpusKind):
    """A seeded random Markov chain."""

    usages: ClassVar[tuple[str, ...]] = ("source:markov",)

    def accepts(self, spec: Spec) -> bool:
        return (spec.kind, spec.body) == ("source", "markov")

    def load(self, spec: Spec, *, data_dir: Path | None, seed: int) -> Corpus:
        refuse_data_dir(spec, data_dir)
        spec.allow(("states", "order", "length", "concentration", "seed", "split"))
        states = spec.option("states", int, 8)
        order = spec.option("order", int, 2)
        length = spec.option("length", int, 200_000)
        concentration = spec.option("concentration", float, 0.3)
        seed = spec.option("seed", int, seed)
        if states < 2 or order < 1 or length < 1 or not 0 < concentration < 1e6 or seed < 0:
            raise UserError(
                f"'{spec.text}' is impossible; states is at least 2, order and length at least 1, "
                "concentration positive and seed not negative"
            )
        if states ** (order + 1) > _LARGEST_TABLE:
            raise UserError(
                f"'{spec.text}' needs a table of {states}^{order + 1} entries, more than "
                f"{_LARGEST_TABLE}; take fewer states or a lower order"
            )
        table = transition_table(states, order, concentration, seed)
        start = stationary(table)
        entropies = conditional_entropies(table, start)
        alphabet = symbols(states)
        splits = []
        for part, share in enumerate(spec.fractions(DEFAULT_SHARES)):
            rng = np.random.default_rng([seed, 1 + part])
            drawn = sample(table, start, round(length * share), rng)
            text = "".join(alphabet[i] for i in drawn).encode()
            splits.append(StoredSplit.of(f"{spec.text} ({SPLITS[part]})", [text] if text else []))
        return Corpus(
            spec.with_seed(seed),
            splits[0],
            splits[1],
            splits[2],
            floor=entropies[-1],
            provenance={
                "states": states,
                "order": order,
                "length": length,
                "concentration": concentration,
                "seed": seed,
                "conditional_entropies": entropies,
            },
            tokenizer=CharTokenizer(alphabet, name="source"),
        )


def transition_table(states: int, order: int, concentration: float, seed: int) -> np.ndarray:
    """P(x | c): a row for each context, the oldest symbol the most significant digit of c."""
    rng = np.random.default_rng([seed, 0])
    # Small concentrations underflow to zero; the smallest normal number keeps every row positive.
    weights = np.maximum(rng.gamma(concentration, size=(states**order, states)), 1e-12)
    return weights / weights.sum(axis=1, keepdims=True)


def stationary(table: np.ndarray) -> np.ndarray:
    """The stationary distribution of contexts, by iteration until it no longer moves."""
    contexts, states = table.shape
    steps = table.reshape(states, contexts // states, states)
    now = np.full(contexts, 1 / contexts)
    for _ in range(100_000):
        # Averaging with the last iterate keeps its fixed point and damps any oscillation.
        following = np.einsum("ab,abx->bx", now.reshape(states, -1), steps).reshape(-1)
        following = (following + now) / 2
        following /= following.sum()
        moved, now = np.abs(following - now).sum(), following
        if moved < 1e-14:
            return now
    raise UserError("this chain mixes too slowly to know its floor; raise the concentration")


def conditional_entropies(table: np.ndarray, start: np.ndarray) -> list[float]:
    """H(X_{j+1} | X_1 .. X_j) in nats for j = 0 .. order; the last is the entropy rate."""
    contexts, states = table.shape
    order = round(np.log(contexts) / np.log(states))
    joint = [start.reshape(states**j, -1).sum(axis=1) for j in range(order + 1)]
    block = [-(p[p > 0] * np.log(p[p > 0])).sum() for p in joint]
    rate = -(start[:, None] * table * np.log(table)).sum()
    return [float(block[j + 1] - block[j]) for j in range(order)] + [float(rate)]


def sample(
    table: np.ndarray, start: np.ndarray, length: int, rng: np.random.Generator
) -> list[int]:
    """`length` symbols of the stationary chain."""
    contexts, states = table.shape
    order = round(np.log(contexts) / np.log(states))
    context = min(bisect_right(list(accumulate(start.tolist())), rng.random()), contexts - 1)
    drawn = [context // states**power % states for power in reversed(range(order))]
    rows = np.cumsum(table, axis=1)[:, :-1].tolist()
    for uniform in rng.random(max(length - order, 0)).tolist():
        symbol = bisect_right(rows[context], uniform)
        drawn.append(symbol)
        context = (context * states + symbol) % contexts
    return drawn[:length]
