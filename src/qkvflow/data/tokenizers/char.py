"""Characters are tokens: the alphabet is the sorted set of characters in the train split.

Characters that only the validation or test split has were never seen in training. Where there are
some, one more id stands for all of them, and scoring it does not say which character it was: bits
per byte are then slightly too low, by at most ln(number of such characters) nats for each.
Where there are none, that id does not exist and the vocabulary is the alphabet.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, SupportsInt

import numpy as np

from qkvflow.data.split import Split
from qkvflow.data.tokenizers.base import (
    TextStream,
    Tokenizer,
    character_boundary,
    refuse_argument,
    write_tokenizer,
)
from qkvflow.errors import UserError
from qkvflow.zoo.registry import TOKENIZERS

UNKNOWN = "\ufffd"


@TOKENIZERS.register("char")
class CharTokenizer(Tokenizer):
    """Token i is character i of `alphabet`; with `unknown`, the last id is every other one."""

    def __init__(self, alphabet: str, *, unknown: bool = False, name: str = "char") -> None:
        self.name = name
        self.alphabet = alphabet
        self.unknown = unknown
        self.vocab_size = len(alphabet) + unknown
        described = json.dumps(["char", alphabet, unknown])
        self.identity = hashlib.sha256(described.encode()).hexdigest()
        self.separator = None
        codes = _codes(alphabet)
        # The id of a character that is not in the alphabet: the unknown one, if there is one.
        self._missing = len(alphabet)
        self._table = np.full(int(codes.max(initial=0)) + 2, self._missing, dtype=np.int64)
        self._table[codes] = np.arange(len(alphabet))

    @classmethod
    def fit(cls, argument: str, corpus: Any) -> "CharTokenizer":
        refuse_argument("char", argument)
        return cls.of(corpus.train, (corpus.validation, corpus.test))

    @classmethod
    def size_of(cls, argument: str) -> int | None:
        return None

    @classmethod
    def read(cls, content: dict[str, Any]) -> "CharTokenizer":
        alphabet, unknown = content["alphabet"], content["unknown"]
        good = isinstance(alphabet, str) and isinstance(unknown, bool)
        if not good or not 0 < len(set(alphabet)) == len(alphabet):
            raise ValueError("an alphabet has every character once")
        return cls(alphabet, unknown=unknown, name=str(content.get("name", "char")))

    @classmethod
    def of(cls, train: Split, others: Iterable[Split]) -> "CharTokenizer":
        """The alphabet of the train split, with an unknown id if the others need one."""
        alphabet = characters_of(train)
        unknown = any(characters_of(split) - alphabet for split in others)
        return cls("".join(sorted(alphabet)), unknown=unknown)

    def encode(self, text: str | bytes) -> np.ndarray:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        codes = _codes(text)
        ids = self._table[np.minimum(codes, len(self._table) - 1)]
        if not self.unknown and (ids == self._missing).any():
            stranger = text[int(np.argmax(ids == self._missing))]
            raise UserError(
                f"the character {stranger!r} is not in the alphabet of {self.vocab_size} "
                "characters; leave it out or train with --tokenizer byte"
            )
        return ids.astype(self.dtype)

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        symbols = self.alphabet + UNKNOWN * self.unknown
        return "".join(symbols[int(i)] for i in ids)

    def stream(self) -> TextStream:
        return _CharStream(self)

    def cut(self, data: bytes) -> int:
        return character_boundary(data)

    def save(self, directory: Path) -> Path:
        content = {"name": self.name, "alphabet": self.alphabet, "unknown": self.unknown}
        return write_tokenizer(directory, "char", content)


class _CharStream(TextStream):
    def __init__(self, tokenizer: CharTokenizer) -> None:
        self._tokenizer = tokenizer

    def push(self, token: SupportsInt) -> str:
        return self._tokenizer.decode([token])

    def finish(self) -> str:
        return ""


def characters_of(split: Split) -> set[str]:
    """Every character that occurs."""
    found: set[str] = set()
    for chunk in split.chunks(character_boundary):
        with decoding(chunk.document, chunk.offset, "char"):
            found.update(chunk.data.decode("utf-8"))
    return found


@contextlib.contextmanager
def decoding(document: str, offset: int, tokenizer: str) -> Iterator[None]:
    """Turns a decoding error inside the block into the line the user reads."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UserError(
            f"{document} is not UTF-8: byte 0x{error.object[error.start]:02x} at offset "
            f"{offset + error.start} (tokenizer {tokenizer}); use --tokenizer byte or convert it"
        ) from None


def _codes(text: str) -> np.ndarray:
    data = text.encode("utf-32-le", "surrogatepass")
    return np.frombuffer(data, dtype=np.dtype("<u4")).astype(np.int64)
