"""Bytes are tokens: 256 ids, any file, nothing to train."""

import codecs
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, SupportsInt

import numpy as np

from qkvflow.data.tokenizers.base import TextStream, Tokenizer, refuse_argument, write_tokenizer
from qkvflow.zoo.registry import TOKENIZERS


@TOKENIZERS.register("byte")
class ByteTokenizer(Tokenizer):
    """Token i is byte i."""

    def __init__(self) -> None:
        self.name = "byte"
        self.vocab_size = 256
        self.identity = hashlib.sha256(b"byte").hexdigest()
        self.separator = None

    @classmethod
    def fit(cls, argument: str, corpus: Any) -> "ByteTokenizer":
        refuse_argument("byte", argument)
        return cls()

    @classmethod
    def size_of(cls, argument: str) -> int | None:
        return 256

    @classmethod
    def read(cls, content: dict[str, Any]) -> "ByteTokenizer":
        return cls()

    def encode(self, text: str | bytes) -> np.ndarray:
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        return np.frombuffer(data, dtype=np.uint8)

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        return bytes(int(i) for i in ids).decode("utf-8", "replace")

    def stream(self) -> TextStream:
        return _ByteStream()

    def cut(self, data: bytes) -> int:
        return len(data)

    def save(self, directory: Path) -> Path:
        return write_tokenizer(directory, "byte", {})


class _ByteStream(TextStream):
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: SupportsInt) -> str:
        return self._decoder.decode(bytes([int(token)]))

    def finish(self) -> str:
        return self._decoder.decode(b"", True)
