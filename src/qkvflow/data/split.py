"""A split: a sequence of whole documents, read from where they lie.

Documents are bytes. Nothing is decoded before a tokenizer asks for it, so a corpus larger than
memory costs a few megabytes here and bytes that are not UTF-8 get as far as the byte tokenizer.
"""

import abc
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from qkvflow.errors import UserError

CHUNK_BYTES = 1 << 22

# Splits have an attribute `bytes`, which hides the type inside their classes.
Raw = bytes


class Chunk(NamedTuple):
    """A stretch of one document: `offset` counts from the start of the file it was read from."""

    document: str
    offset: int
    data: bytes
    ends_document: bool


class Split(abc.ABC):
    """Whole documents, and what a record says of them: `documents`, `bytes`, `characters`,
    `sha256`. Characters are UTF-8 code points; the hash covers contents and boundaries."""

    documents: int
    bytes: int
    characters: int
    sha256: str

    @abc.abstractmethod
    def size(self, index: int) -> int:
        """Length of a document in bytes."""

    @abc.abstractmethod
    def origin(self, index: int) -> tuple[str, int]:
        """The name of the document, for messages, and where it starts in what that name names."""

    @abc.abstractmethod
    def read(self, index: int, start: int, stop: int) -> Raw:
        """Bytes `start` to `stop` of a document."""

    def __len__(self) -> int:
        return self.documents

    def __getitem__(self, index: int) -> Raw:
        if not 0 <= index < self.documents:
            raise IndexError(index)
        return self.read(index, 0, self.size(index))

    def __iter__(self) -> Iterator[Raw]:
        for index in range(self.documents):
            yield self[index]

    def chunks(self, cut: Callable[[Raw], int], *, size: int = CHUNK_BYTES) -> Iterator[Chunk]:
        """Every document in stretches of about `size` bytes.

        `cut(data)` is the last position at which `data` may be cut, or 0 where it may not: then
        the stretch grows until it may, at worst to the whole document.
        """
        for index in range(self.documents):
            name, origin = self.origin(index)
            length, start, wanted = self.size(index), 0, size
            while start < length or length == 0:
                stop = min(start + wanted, length)
                data = self.read(index, start, stop)
                if stop < length:
                    position = cut(data)
                    if position == 0:
                        wanted *= 2
                        continue
                    data = data[:position]
                end = start + len(data)
                yield Chunk(name, origin + start, data, end == length)
                if length == 0:
                    break
                start, wanted = end, size


def count_characters(data: bytes) -> int:
    """UTF-8 code points in valid UTF-8: the bytes that do not continue a character."""
    codes = np.frombuffer(data, dtype=np.uint8)
    return int(np.count_nonzero((codes & 0xC0) != 0x80))


class Tally:
    """Counts and hashes documents as they go by."""

    def __init__(self) -> None:
        self.documents = 0
        self.bytes = 0
        self.characters = 0
        self._hash = hashlib.sha256()

    def begin(self, length: int) -> None:
        """A document of `length` bytes follows. The length is hashed too: it is a boundary."""
        self.documents += 1
        self._hash.update(length.to_bytes(8, "little"))

    def add(self, data: bytes) -> None:
        self.bytes += len(data)
        self.characters += count_characters(data)
        self._hash.update(data)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


@dataclass(frozen=True)
class Piece:
    """A whole file, or bytes `start` to `stop` of one."""

    path: Path
    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class FileSplit(Split):
    """Documents that are files, or one contiguous part of a file."""

    pieces: Sequence[Piece]
    documents: int = field(init=False)
    bytes: int = field(init=False)
    characters: int = field(init=False)
    sha256: str = field(init=False)

    def __post_init__(self) -> None:
        tally = Tally()
        for piece in self.pieces:
            length = piece.stop - piece.start
            tally.begin(length)
            for start in range(0, length, CHUNK_BYTES):
                tally.add(_read(piece, start, min(start + CHUNK_BYTES, length)))
        _set_totals(self, tally)

    def size(self, index: int) -> int:
        return self.pieces[index].stop - self.pieces[index].start

    def origin(self, index: int) -> tuple[str, int]:
        return self.pieces[index].name, self.pieces[index].start

    def read(self, index: int, start: int, stop: int) -> Raw:
        return _read(self.pieces[index], start, stop)


@dataclass(frozen=True)
class StoredSplit(Split):
    """Documents end to end in one array of bytes (in memory or mapped), with their boundaries."""

    name: str
    buffer: np.ndarray
    offsets: np.ndarray
    documents: int
    bytes: int
    characters: int
    sha256: str

    @classmethod
    def of(cls, name: str, documents: Iterable[Raw]) -> "StoredSplit":
        """A split held in memory."""
        tally, kept, offsets = Tally(), [], [0]
        for document in documents:
            tally.begin(len(document))
            tally.add(document)
            kept.append(document)
            offsets.append(tally.bytes)
        return cls(
            name=name,
            buffer=np.frombuffer(b"".join(kept), dtype=np.uint8),
            offsets=np.asarray(offsets, dtype=np.int64),
            documents=tally.documents,
            bytes=tally.bytes,
            characters=tally.characters,
            sha256=tally.sha256,
        )

    def size(self, index: int) -> int:
        return int(self.offsets[index + 1] - self.offsets[index])

    def origin(self, index: int) -> tuple[str, int]:
        return f"document {index} of {self.name}", 0

    def read(self, index: int, start: int, stop: int) -> Raw:
        base = int(self.offsets[index])
        return self.buffer[base + start : base + stop].tobytes()


def _read(piece: Piece, start: int, stop: int) -> Raw:
    try:
        with piece.path.open("rb") as file:
            file.seek(piece.start + start)
            data = file.read(stop - start)
    except OSError as error:
        raise UserError(f"cannot read {piece.name}: {error.strerror}; check the file") from error
    if len(data) != stop - start:
        raise UserError(f"{piece.name} became shorter while it was read; run again")
    return data


def _set_totals(split: FileSplit, tally: Tally) -> None:
    # The dataclass is frozen for everybody else; its totals follow from its pieces.
    for name in ("documents", "bytes", "characters", "sha256"):
        object.__setattr__(split, name, getattr(tally, name))
