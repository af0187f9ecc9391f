"""Encoding a corpus once, into memory-mapped arrays that are kept.

An array is kept under the hash of its text, the identity of the tokenizer and the version of this
format; it appears under that name only when it is whole (see `cache`).
"""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkvflow.data.cache import building, is_complete
from qkvflow.data.corpus import SPLITS, Corpus
from qkvflow.data.split import Chunk, Split
from qkvflow.data.tokenizers.base import Tokenizer
from qkvflow.data.tokenizers.bpe import SubwordTokenizer
from qkvflow.data.tokenizers.char import decoding
from qkvflow.errors import UserError
from qkvflow.paths import cache_dir

_FORMAT = 2
# Enough text at a time for every core to have some, little enough to fit anywhere.
_BATCH_BYTES = 1 << 24
_SUBWORD_CHUNK_BYTES = 1 << 18


@dataclass(frozen=True)
class TokenArray:
    """The tokens of a split, and the bytes of text they stand for."""

    tokens: np.ndarray
    documents: int
    bytes: int
    characters: int
    sha256: str

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def bytes_per_token(self) -> float:
        """Bytes of text per token; 0 for an empty split."""
        return self.bytes / len(self.tokens) if len(self.tokens) else 0.0

    def bits_per_byte(self, nats: float) -> float:
        """A loss in nats per token as bits per byte, which compares across tokenizers."""
        return nats / (self.bytes_per_token * math.log(2)) if len(self.tokens) else math.nan


@dataclass(frozen=True)
class EncodedCorpus:
    """A corpus as tokens."""

    corpus: Corpus
    tokenizer: Tokenizer
    train: TokenArray
    validation: TokenArray
    test: TokenArray

    def describe(self) -> dict[str, Any]:
        """What a record says of the data (`data` in docs/records.md)."""
        return {
            "spec": self.corpus.spec,
            "tokenizer": self.tokenizer.name,
            "tokenizer_identity": self.tokenizer.identity,
            "vocab_size": self.tokenizer.vocab_size,
            "sha256": self.corpus.sha256,
            "floor": self.corpus.floor,
            "splits": {name: _describe(getattr(self, name)) for name in SPLITS},
        }


def _describe(split: TokenArray) -> dict[str, Any]:
    return {
        "documents": split.documents,
        "bytes": split.bytes,
        "characters": split.characters,
        "tokens": len(split),
        "sha256": split.sha256,
    }


def encode_corpus(corpus: Corpus, tokenizer: Tokenizer, *, progress: bool = False) -> EncodedCorpus:
    """Encode every split, or find it encoded."""
    with _progress_bar(corpus, progress) as advance:
        splits = [encode_split(getattr(corpus, name), tokenizer, advance) for name in SPLITS]
    return EncodedCorpus(corpus, tokenizer, *splits)


def require_context(encoded: EncodedCorpus, context: int) -> None:
    """Refuse a corpus whose train split has no window of `context` inputs and their targets, or
    whose validation split has nothing to predict."""
    have = len(encoded.train)
    if have < context + 1:
        raise UserError(
            f"'{encoded.corpus.spec}' has {have} train tokens, fewer than one context of {context} "
            "and its last target; give more text or a shorter context"
        )
    if len(encoded.validation) < 2:
        raise UserError(
            f"'{encoded.corpus.spec}' has {len(encoded.validation)} validation tokens, nothing to "
            "predict; give more text or a larger validation share with '?split='"
        )


def encode_split(
    split: Split, tokenizer: Tokenizer, advance: Callable[[int], None] = lambda _: None
) -> TokenArray:
    """The tokens of one split, from the cache where they are."""
    directory = cache_dir("tokens") / _key(split, tokenizer)
    if not is_complete(directory):
        with building(directory) as temporary:
            _write(temporary, split, tokenizer, advance)
    else:
        advance(split.bytes)
    path = directory / "tokens.bin"
    count = path.stat().st_size // tokenizer.dtype.itemsize
    # An empty file cannot be mapped.
    tokens = np.memmap(path, tokenizer.dtype, "r") if count else np.zeros(0, tokenizer.dtype)
    return TokenArray(tokens, split.documents, split.bytes, split.characters, split.sha256)


def _key(split: Split, tokenizer: Tokenizer) -> str:
    identity = json.dumps([_FORMAT, split.sha256, tokenizer.identity, tokenizer.dtype.str])
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


def _write(
    directory: Path, split: Split, tokenizer: Tokenizer, advance: Callable[[int], None]
) -> None:
    separator = np.asarray(
        [] if tokenizer.separator is None else [tokenizer.separator], dtype=tokenizer.dtype
    )
    with (directory / "tokens.bin").open("wb") as file:
        for chunks, encoded in _encoded_batches(split, tokenizer):
            for chunk, tokens in zip(chunks, encoded, strict=True):
                file.write(tokens.astype(tokenizer.dtype, copy=False).tobytes())
                if chunk.ends_document:
                    file.write(separator.tobytes())
            advance(sum(len(chunk.data) for chunk in chunks))


def _encoded_batches(
    split: Split, tokenizer: Tokenizer
) -> Iterator[tuple[list[Chunk], list[np.ndarray]]]:
    if isinstance(tokenizer, SubwordTokenizer):
        size = _SUBWORD_CHUNK_BYTES
        for batch in _batches(split.chunks(tokenizer.cut, size=size)):
            for chunk in batch:
                with decoding(chunk.document, chunk.offset, tokenizer.name):
                    chunk.data.decode("utf-8")
            yield batch, tokenizer.encode_many([chunk.data for chunk in batch])
        return
    for chunk in split.chunks(tokenizer.cut):
        with decoding(chunk.document, chunk.offset, tokenizer.name):
            yield [chunk], [tokenizer.encode(chunk.data)]


def _batches(chunks: Iterator[Chunk]) -> Iterator[list[Chunk]]:
    batch: list[Chunk] = []
    size = 0
    for chunk in chunks:
        batch.append(chunk)
        size += len(chunk.data)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@contextlib.contextmanager
def _progress_bar(corpus: Corpus, wanted: bool) -> Iterator[Callable[[int], None]]:
    if not wanted:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    total = sum(getattr(corpus, name).bytes for name in SPLITS)
    console = Console(stderr=True)
    # Piped output would collect redrawn bars.
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"encoding {corpus.spec} on {os.cpu_count()} cores", total=total)
        yield lambda amount: bar.advance(task, amount)
