"""What a tokenizer is."""

import abc
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsInt

import numpy as np

from qkvflow.errors import UserError
from qkvflow.files import write_whole

if TYPE_CHECKING:
    from qkvflow.data.corpus import Corpus


_TAIL = 8
"""Tokens of a prompt that the text of the next one may depend on."""


class TextStream(abc.ABC):
    """Decodes tokens as they come, holding back bytes that are not a whole character yet."""

    @abc.abstractmethod
    def push(self, token: SupportsInt) -> str:
        """The text that is certain after one more token; often one character, sometimes none."""

    @abc.abstractmethod
    def finish(self) -> str:
        """What was held back. All parts together are `Tokenizer.decode` of all tokens."""


class Tokenizer(abc.ABC):
    """Text to integers and back, registered by the name that `NAME[:ARGUMENT]` begins with.

    - `name`: how the user asked for it.
    - `vocab_size`: ids run from 0 to `vocab_size - 1`.
    - `identity`: a hash of everything that decides the ids, for cache keys.
    - `separator`: the id written after each document, or None.
    - `prefix`: ids that a text to be continued begins with (the start token of some pretrained
      models).
    """

    name: str
    vocab_size: int
    identity: str
    separator: int | None
    prefix: tuple[int, ...] = ()

    @classmethod
    @abc.abstractmethod
    def fit(cls, argument: str, corpus: "Corpus") -> "Tokenizer":
        """The tokenizer of `NAME:ARGUMENT` for a corpus; the argument may be empty."""

    @classmethod
    @abc.abstractmethod
    def size_of(cls, argument: str) -> int | None:
        """The vocabulary of `NAME:ARGUMENT`, if it is known before the corpus is read."""

    @classmethod
    @abc.abstractmethod
    def read(cls, content: dict[str, Any]) -> "Tokenizer":
        """Back from what `save` wrote; KeyError, TypeError or ValueError if it is not that."""

    @abc.abstractmethod
    def encode(self, text: str | bytes) -> np.ndarray:
        """Ids in the smallest unsigned type. Bytes that are not UTF-8 raise UnicodeDecodeError,
        except with the byte tokenizer."""

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a text to be continued: after the prefix, if the model wants one; an empty text is
        the start of a document, where the tokenizer knows such."""
        ids = [*self.prefix, *self.encode(text).tolist()]
        return ids or ([] if self.separator is None else [self.separator])

    @abc.abstractmethod
    def decode(self, ids: Iterable[SupportsInt]) -> str:
        """Text; bytes that are no character become U+FFFD."""

    @abc.abstractmethod
    def stream(self) -> TextStream:
        """A decoder for tokens that come one at a time."""

    def without_prefix(self, prompt: Sequence[int]) -> list[int]:
        """A prompt's own tokens."""
        size = len(self.prefix)
        return list(prompt[size:] if tuple(prompt[:size]) == self.prefix else prompt)

    def stream_after(self, prompt: Sequence[int]) -> TextStream:
        """A decoder for tokens that come after these: some begin with a space only there."""
        stream, probe = self.stream(), self.stream()
        for token in self.without_prefix(prompt)[-_TAIL:]:
            stream.push(token)
            probe.push(token)
        # What is held of a prompt has been shown with it.
        return self.stream() if probe.finish() else stream

    def decode_after(self, prompt: Sequence[int], ids: Iterable[SupportsInt]) -> str:
        """The text that these ids add to a prompt's."""
        stream = self.stream_after(prompt)
        return "".join([*map(stream.push, ids), stream.finish()])

    @abc.abstractmethod
    def cut(self, data: bytes) -> int:
        """The last position where `data` may be cut without changing its encoding; 0 if none."""

    @abc.abstractmethod
    def save(self, directory: Path) -> Path:
        """Write `tokenizer.json`, which `load_tokenizer` reads back (see `write_tokenizer`);
        returns its path."""

    @property
    def dtype(self) -> np.dtype:
        """The smallest unsigned type that holds every id."""
        for candidate in (np.uint8, np.uint16):
            if self.vocab_size <= np.iinfo(candidate).max + 1:
                return np.dtype(candidate)
        return np.dtype(np.uint32)


def write_tokenizer(directory: Path, kind: str, content: dict[str, Any]) -> Path:
    """`tokenizer.json` of a registered kind, whose `read` gets the content."""
    path = Path(directory) / "tokenizer.json"
    write_whole(path, json.dumps({"qkvflow": kind, **content}) + "\n")
    return path


def refuse_argument(name: str, argument: str) -> None:
    """For tokenizers that take none."""
    if argument:
        raise UserError(f"tokenizer '{name}:{argument}' takes no argument; write {name}")


def character_boundary(data: bytes) -> int:
    """The last position in `data` where a UTF-8 character starts; 0 if there is none."""
    for position in range(len(data) - 1, max(len(data) - 5, 0), -1):
        if data[position] & 0xC0 != 0x80:
            return position
    # Not UTF-8: cutting anywhere is as good, decoding will say where it is wrong.
    return len(data) if len(data) >= 5 else 0
