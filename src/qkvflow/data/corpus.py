"""A corpus: three splits that share no document, and where they came from."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qkvflow.data.split import Split
from qkvflow.data.tokenizers.base import Tokenizer

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Answers:
    """Where the answers of a probe stand: documents are of one length, answers at fixed places."""

    document_tokens: int
    positions: tuple[int, ...]
    """Of the answer tokens in a document."""
    chance: float
    """Accuracy of a guess among the symbols that an answer can be."""
    difficulty: str = ""
    """The option of the source that makes it harder."""
    levels: tuple[int, ...] = ()
    """Its values in the text; several where a document tells which it has."""

    def option(self, level: int) -> str:
        """The value of the option for documents of one level, written as in this text."""
        return str(level) if len(self.levels) < 2 else f"{level}-{level}"


@dataclass(frozen=True)
class Corpus:
    """Text ready to be encoded.

    - `spec`: the specification it was loaded from.
    - `train`, `validation`, `test`: the splits; `test` may be empty where the user asked for two.
    - `floor`: entropy rate in nats per token where it is known (sources), else None.
    - `provenance`: what else is needed to get the same text again.
    - `tokenizer`: the alphabet a source brings with it, else None.
    - `answers`: where they stand, of a probe, else None.
    - `sha256`: of the three splits.
    """

    spec: str
    train: Split
    validation: Split
    test: Split
    floor: float | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Tokenizer | None = None
    answers: Answers | None = None
    sha256: str = field(init=False)

    def __post_init__(self) -> None:
        joined = "".join(getattr(self, name).sha256 for name in SPLITS)
        object.__setattr__(self, "sha256", hashlib.sha256(joined.encode()).hexdigest())
