"""`source:addition`: the sum of n numbers (n-ary addition, Saunshi et al. 2025), with its floor.

    <  123+045+678  =  0846

n numbers of d digits, uniform and independent, and their sum, most significant digit first, in as
many digits as the largest sum has. Entropy: n d ln 10, because the sum is determined.

Options: `numbers` (4), `digits` (3), `length` (200000 tokens), `seed`, `split`.
"""

import math
import string
from pathlib import Path
from typing import ClassVar

import numpy as np

from qkvflow.data.corpora.base import CorpusKind, Spec, refuse_data_dir
from qkvflow.data.corpora.parts.probe import probe_corpus
from qkvflow.data.corpus import Answers, Corpus
from qkvflow.errors import UserError
from qkvflow.zoo.registry import CORPORA

_ALPHABET = string.digits + "<+="


@CORPORA.register("addition")
class Addition(CorpusKind):
    """Seeded addition of several numbers."""

    usages: ClassVar[tuple[str, ...]] = ("source:addition",)

    def accepts(self, spec: Spec) -> bool:
        return (spec.kind, spec.body) == ("source", "addition")

    def load(self, spec: Spec, *, data_dir: Path | None, seed: int) -> Corpus:
        refuse_data_dir(spec, data_dir)
        spec.allow(("numbers", "digits", "length", "seed", "split"))
        numbers, digits = spec.option("numbers", int, 4), spec.option("digits", int, 3)
        if numbers < 2 or not 1 <= digits <= 15:
            raise UserError(
                f"'{spec.text}' is impossible; numbers is at least 2 and digits from 1 to 15"
            )
        width = len(str(numbers * (10**digits - 1)))
        begin = 1 + numbers * (digits + 1)

        def sample(documents: int, rng: np.random.Generator) -> np.ndarray:
            drawn = rng.integers(10, size=(documents, numbers, digits))
            values = drawn @ 10 ** np.arange(digits - 1, -1, -1)
            total = values.sum(axis=1)[:, None] // 10 ** np.arange(width - 1, -1, -1) % 10
            signs = np.full((documents, numbers, 1), _ALPHABET.index("+"))
            signs[:, -1] = _ALPHABET.index("=")
            terms = np.concatenate([drawn, signs], axis=2).reshape(documents, -1)
            first = np.full((documents, 1), _ALPHABET.index("<"))
            return np.concatenate([first, terms, total], axis=1)

        return probe_corpus(
            spec,
            sample,
            alphabet=_ALPHABET,
            entropy=numbers * digits * math.log(10),
            answers=Answers(
                begin + width, tuple(range(begin, begin + width)), 0.1, "numbers", (numbers,)
            ),
            seed=spec.option("seed", int, seed),
            length=spec.option("length", int, 200_000),
            options={"numbers": numbers, "digits": digits},
        )
