"""`source:assignment`: variables assigned in reordered lines (Saunshi et al. 2025), with its floor.

    <  c=b;a=7;b=a;  ..  ?  c  7

There are C chains of D lines: the first variable of a chain has a value, every other has the one
before it. All names differ, the lines are in uniformly random order, and the last variable of one
chain is asked for. A text follows from names (N! / (N - C D)! of them), values V^C, the order
(C D)! and the question C, and C! relabellings of the chains give the same text, so that

    H = ln [ N! / (N - C D)!  V^C  (C D)!  C / C! ]

and every text is equally likely: H / L is the entropy rate, exactly.

Options: `depth` (4: D), `chains` (3: C), `names` (26: N), `values` (10: V), `length`, `seed`,
`split`.
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

_MARKERS = "<=;?"


@CORPORA.register("assignment")
class Assignment(CorpusKind):
    """Seeded variable assignment."""

    usages: ClassVar[tuple[str, ...]] = ("source:assignment",)

    def accepts(self, spec: Spec) -> bool:
        return (spec.kind, spec.body) == ("source", "assignment")

    def load(self, spec: Spec, *, data_dir: Path | None, seed: int) -> Corpus:
        refuse_data_dir(spec, data_dir)
        spec.allow(("depth", "chains", "names", "values", "length", "seed", "split"))
        depth, chains = spec.option("depth", int, 4), spec.option("chains", int, 3)
        names, values = spec.option("names", int, 26), spec.option("values", int, 10)
        lines = depth * chains
        if min(depth, chains) < 1 or values < 2 or names < lines or names + values > LARGEST:
            raise UserError(
                f"'{spec.text}' is impossible; depth and chains are at least 1, values at least 2 "
                "and names at least depth x chains"
            )

        def sample(documents: int, rng: np.random.Generator) -> np.ndarray:
            drawn = np.argsort(rng.random((documents, names)), axis=1)[:, :lines]
            left = len(_MARKERS) + drawn.reshape(documents, chains, depth)
            given = len(_MARKERS) + names + rng.integers(values, size=(documents, chains, 1))
            right = np.concatenate([given, left[:, :, :-1]], axis=2)
            marks = [np.full_like(left, _MARKERS.index(each)) for each in "=;"]
            text = np.stack([left, marks[0], right, marks[1]], axis=-1).reshape(documents, lines, 4)
            order = np.argsort(rng.random((documents, lines)), axis=1)
            text = np.take_along_axis(text, order[:, :, None], axis=1).reshape(documents, -1)
            asked = rng.integers(chains, size=documents)
            rows = np.arange(documents)
            ends = [left[rows, asked, -1], given[rows, asked, 0]]
            first, ask = (np.full(documents, _MARKERS.index(each)) for each in "<?")
            return np.concatenate(
                [first[:, None], text, ask[:, None], np.stack(ends, axis=1)], axis=1
            )

        named = sum(math.log(names - i) for i in range(lines))
        entropy = named + chains * math.log(values) + math.lgamma(lines + 1)
        entropy += math.log(chains) - math.lgamma(chains + 1)
        size = 4 * lines + 4
        return probe_corpus(
            spec,
            sample,
            alphabet=_MARKERS + symbols(names + values),
            entropy=entropy,
            answers=Answers(size, (size - 1,), 1.0 / values, "depth", (depth,)),
            seed=spec.option("seed", int, seed),
            length=spec.option("length", int, 200_000),
            options={"depth": depth, "chains": chains, "names": names, "values": values},
        )
