"""What a tokenizer is."""

import abc
from collections.abc import Iterable
from pathlib import Path
from typing import SupportsInt

import numpy as np


class TextStream(abc.ABC):
    """Decodes tokens as they come, holding back bytes that are not a whole character yet."""

    @abc.abstractmethod
    def push(self, token: SupportsInt) -> str:
        """The text that is certain after one more token; often one character, sometimes none."""

    @abc.abstractmethod
    def finish(self) -> str:
        """What was held back. All parts together are `Tokenizer.decode` of all tokens."""


class Tokenizer(abc.ABC):
    """Text to integers and back.

    - `name`: how the user asked for it.
    - `vocab_size`: ids run from 0 to `vocab_size - 1`.
    - `identity`: a hash of everything that decides the ids, for cache keys.
    - `separator`: the id written after each document, or None.
    """

    name: str
    vocab_size: int
    identity: str
    separator: int | None

    @abc.abstractmethod
    def encode(self, text: str | bytes) -> np.ndarray:
        """Ids in the smallest unsigned type. Bytes that are not UTF-8 raise UnicodeDecodeError,
        except with the byte tokenizer."""

    @abc.abstractmethod
    def decode(self, ids: Iterable[SupportsInt]) -> str:
        """Text; bytes that are no character become U+FFFD."""

    @abc.abstractmethod
    def stream(self) -> TextStream:
        """A decoder for tokens that come one at a time."""

    @abc.abstractmethod
    def cut(self, data: bytes) -> int:
        """The last position where `data` may be cut without changing its encoding; 0 if none."""

    @abc.abstractmethod
    def save(self, directory: Path) -> Path:
        """Write `tokenizer.json`, which `load_tokenizer` reads back; returns its path."""

    @property
    def dtype(self) -> np.dtype:
        """The smallest unsigned type that holds every id."""
        for candidate in (np.uint8, np.uint16):
            if self.vocab_size <= np.iinfo(candidate).max + 1:
                return np.dtype(candidate)
        return np.dtype(np.uint32)


def character_boundary(data: bytes) -> int:
    """The last position in `data` where a UTF-8 character starts; 0 if there is none."""
    for position in range(len(data) - 1, max(len(data) - 5, 0), -1):
        if data[position] & 0xC0 != 0x80:
            return position
    # Not UTF-8: cutting anywhere is as good, decoding will say where it is wrong.
    return len(data) if len(data) >= 5 else 0
