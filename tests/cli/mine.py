"""A plugin for the tests: one member of every kind that a run can name, and an analysis."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, SupportsInt

import numpy as np

import qkvflow
from qkvflow.analysis import AbstractResult, Analysis, Subject
from qkvflow.data import SPLITS, Corpus
from qkvflow.data.corpora.base import CorpusKind, Spec
from qkvflow.data.split import StoredSplit
from qkvflow.data.tokenizers.base import TextStream, Tokenizer, write_tokenizer
from qkvflow.schemes import grid
from qkvflow.training.trackers.base import Tracker
from qkvflow.zoo.registry import ANALYSES, CORPORA, TOKENIZERS, TRACKERS

qkvflow.register("my-model", d_model=8, num_heads=1, num_steps=2, context=8)


@CORPORA.register("my-words")
class Words(CorpusKind):
    usages: ClassVar[tuple[str, ...]] = ("source:my-words",)

    def accepts(self, spec: Spec) -> bool:
        return (spec.kind, spec.body) == ("source", "my-words")

    def load(self, spec: Spec, *, data_dir: Path | None, seed: int) -> Corpus:
        text = [b"depth is a coordinate, and the flow goes on.\n" * 20]
        train, validation, test = (StoredSplit.of(name, text) for name in SPLITS)
        return Corpus(spec.text, train, validation, test)


@TOKENIZERS.register("my-shift")
class Shift(Tokenizer):
    """`my-shift:N`: byte b is token b + N."""

    def __init__(self, by: int) -> None:
        self.name, self.by = f"my-shift:{by}", by
        self.vocab_size, self.separator = 256, None
        self.identity = hashlib.sha256(self.name.encode()).hexdigest()

    @classmethod
    def fit(cls, argument: str, corpus: Corpus) -> "Shift":
        return cls(int(argument or 1))

    @classmethod
    def size_of(cls, argument: str) -> int | None:
        return 256

    @classmethod
    def read(cls, content: dict[str, Any]) -> "Shift":
        return cls(content["by"])

    def encode(self, text: str | bytes) -> np.ndarray:
        data = text.encode() if isinstance(text, str) else text
        return np.frombuffer(data, np.uint8) + np.uint8(self.by)

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        return bytes((int(i) - self.by) % 256 for i in ids).decode("utf-8", "replace")

    def stream(self) -> TextStream:
        return _Stream(self)

    def cut(self, data: bytes) -> int:
        return len(data)

    def save(self, directory: Path) -> Path:
        return write_tokenizer(directory, "my-shift", {"by": self.by})


class _Stream(TextStream):
    def __init__(self, tokenizer: Shift) -> None:
        self._tokenizer = tokenizer

    def push(self, token: SupportsInt) -> str:
        return self._tokenizer.decode([token])

    def finish(self) -> str:
        return ""


@TRACKERS.register("my-lines")
class Lines(Tracker):
    def __init__(self, directory: Path, config: Any) -> None:
        self._file = (directory / "my-lines.txt").open("a", encoding="utf-8")

    def log(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")

    def text(self, name: str, text: str, step: int) -> None:
        pass

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class Sizes(AbstractResult):
    ts: np.ndarray
    largest: np.ndarray
    two: np.ndarray
    layers: int

    def findings(self) -> list[str]:
        return [f"The largest weight is {self.largest.max():.3f}."]


@ANALYSES.register("my-sizes")
class SizesAnalysis(Analysis):
    order: ClassVar[int] = 15

    def run(self, subject: Subject) -> Sizes:
        ts = grid(subject.model.num_steps)
        weights = np.asarray(subject.model.field.stack(ts).branches[0].mixer.qkv.weight)
        largest = np.abs(weights).max((1, 2))
        return Sizes(ts, largest, np.stack([largest, -largest], 1), len(ts))

    def lacks(self, model: Any) -> str | None:
        return None
