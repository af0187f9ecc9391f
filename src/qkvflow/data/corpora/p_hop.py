"""`source:p-hop`: p-hop induction (Sanford et al. 2024; Saunshi et al. 2025), with its floor.

A document is n symbols, uniform and independent, and the answer of p hops from the last of them:

    <  v_1 .. v_n  ?  a

A hop goes from a place to the one after the previous occurrence of its symbol,

    hop(i) = max { j <= i : v_{j-1} = v_i },      a = v at hop^p(n),

and a is the marker _ where there is no such place. One hop is what an induction head does; p hops
take depth. Entropy: n ln V, because the markers are fixed and the answer is determined.

`hops=1-8` draws p for every document, uniformly, and tells it: a symbol of its own for each p is in
the place of the ?, and the entropy is ln 8 more. `questions=8` asks up to so many in a row, each
with another p (all of them here, so that the entropy is ln 8! more): one answer among many
random tokens is a weak signal to learn from.

Options: `hops` (4), `questions` (1), `symbols` (4), `sequence` (61: 64 tokens), `length` (200000),
`seed`, `split`.
"""

import math
from pathlib import Path
from typing import ClassVar

import numpy as np

from qkvflow.data.corpora.base import CorpusKind, Spec, refuse_data_dir
from qkvflow.data.corpora.parts.probe import probe_corpus
from qkvflow.data.corpora.parts.symbols import LARGEST, symbols
from qkvflow.data.corpus import Answers, Corpus
from qkvflow.errors import UserError
from qkvflow.zoo.registry import CORPORA

_MARKERS = "<?_"


@CORPORA.register("p-hop")
class PHop(CorpusKind):
    """Seeded p-hop induction."""

    usages: ClassVar[tuple[str, ...]] = ("source:p-hop",)

    def accepts(self, spec: Spec) -> bool:
        return (spec.kind, spec.body) == ("source", "p-hop")

    def load(self, spec: Spec, *, data_dir: Path | None, seed: int) -> Corpus:
        refuse_data_dir(spec, data_dir)
        spec.allow(("hops", "questions", "symbols", "sequence", "length", "seed", "split"))
        (least, most, told), count = (
            spec.option("hops", _hops, (4, 4, False)),
            spec.option("symbols", int, 4),
        )
        sequence, asked = spec.option("sequence", int, 61), spec.option("questions", int, 1)
        if (
            not 1 <= least <= most
            or sequence < 2
            or count < 2
            or count + most > LARGEST
            or asked < 1
            or (asked > 1 and not told)
        ):
            raise UserError(
                f"'{spec.text}' is impossible; hops is at least 1, or a range such as 1-8, symbols "
                "and sequence at least 2, questions at least 1, and more with a range of hops alone"
            )
        kinds = most - least + 1
        questions = min(asked, kinds)

        def sample(documents: int, rng: np.random.Generator) -> np.ndarray:
            shown = rng.integers(count, size=(documents, sequence))
            hops = np.full((documents, 1), most)
            if told and questions == 1:
                hops = rng.integers(least, most + 1, size=(documents, 1))
            elif told:
                every = np.tile(np.arange(least, most + 1), (documents, 1))
                hops = rng.permuted(every, axis=1)[:, :questions]
            ends = np.stack([hop(shown, column) for column in hops.T], axis=1)
            found = np.take_along_axis(shown, np.maximum(ends, 0), axis=1) + len(_MARKERS)
            answers = np.where(ends < 0, _MARKERS.index("_"), found)
            ask = len(_MARKERS) + count + hops - 1 if told else np.ones_like(answers)
            first = np.zeros((documents, 1), answers.dtype)
            pairs = np.stack([ask, answers], axis=2).reshape(documents, 2 * questions)
            return np.concatenate([first, shown + len(_MARKERS), pairs], axis=1)

        return probe_corpus(
            spec,
            sample,
            alphabet=_MARKERS + symbols(count + most * told),
            entropy=sequence * math.log(count) + math.log(math.perm(kinds, questions)),
            answers=Answers(
                sequence + 1 + 2 * questions,
                tuple(sequence + 2 + 2 * i for i in range(questions)),
                1.0 / count,
                "hops",
                tuple(range(least, most + 1)),
            ),
            seed=spec.option("seed", int, seed),
            length=spec.option("length", int, 200_000),
            options={
                "hops": f"{least}-{most}" if told else most,
                "symbols": count,
                "sequence": sequence,
                **({"questions": questions} if questions > 1 else {}),
            },
        )


def _hops(text: str) -> tuple[int, int, bool]:
    """The fewest and most, and whether a document tells its own."""
    least, told, most = text.partition("-")
    return int(least), int(most) if told else int(least), bool(told)


def hop(shown: np.ndarray, hops: np.ndarray) -> np.ndarray:
    """Where so many hops from the last place of each row end; -1 where one has nowhere to go."""
    places = np.arange(1, shown.shape[1])
    at = np.full(len(shown), shown.shape[1] - 1)
    for number in range(hops.max(initial=0)):
        symbol = np.take_along_axis(shown, np.maximum(at, 0)[:, None], axis=1)
        fits = (shown[:, :-1] == symbol) & (places[None] <= at[:, None])
        at = np.where(number < hops, np.where(fits, places[None], -1).max(axis=1), at)
    return at
