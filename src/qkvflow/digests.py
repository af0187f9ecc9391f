"""Hashes of what a run depends on: recorded when it is written, checked when it is read.

They find what a disk, a copy or a slip of the hand has changed. Who can write the files can write
the hashes as well, so they say nothing of who made them.
"""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np

from qkvflow.errors import UserError
from qkvflow.files import to_json, write_json

SEAL = "sha256"
_PIECE = 1 << 25
"""Large enough for a thread to be worth it; hashing releases the interpreter's lock."""


def file_digest(path: Path, size: int | None = None) -> str:
    """Of a file, or of its first `size` bytes: the hash of the hashes of its pieces."""
    size = path.stat().st_size if size is None else size

    def piece(start: int) -> bytes:
        with path.open("rb") as file:
            file.seek(start)
            return hashlib.sha256(file.read(min(_PIECE, size - start))).digest()

    return _together(piece, range(0, size, _PIECE))


def array_digest(array: Any) -> bytes:
    """Of an array's type, shape and bytes."""
    host = np.asarray(array)
    flat = np.ascontiguousarray(host).reshape(-1).view(np.uint8)
    pieces = [flat[start : start + _PIECE] for start in range(0, len(flat), _PIECE)]
    described = f"{host.dtype} {host.shape}".encode()
    hashes = (hashlib.sha256(cast(Any, piece)).digest() for piece in pieces)
    return b"".join([described, *hashes])


def arrays_digest(arrays: Mapping[str, Any], whole: Callable[[Any], Any] | None = None) -> str:
    """Of arrays by name. With `whole`, which makes all of an array present here, one by one and in
    order, so that one alone is in memory and processes ask for the same."""

    def digest(name: str) -> bytes:
        array = arrays[name] if whole is None else whole(arrays[name])
        return name.encode() + b"\0" + array_digest(array)

    return _together(digest, sorted(arrays), threads=whole is None)


def _together(
    digest: Callable[[Any], bytes], parts: Collection[Any], *, threads: bool = True
) -> str:
    if not threads or len(parts) < 2:
        return hashlib.sha256(b"\n".join(map(digest, parts))).hexdigest()
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return hashlib.sha256(b"\n".join(pool.map(digest, parts))).hexdigest()


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON document with the hash of the rest of it."""
    content = {key: value for key, value in document.items() if key != SEAL}
    return {**content, SEAL: _document_digest(content)}


def write_sealed(path: Path, document: Mapping[str, Any]) -> None:
    """Replace a file by a JSON document that says its hash."""
    write_json(path, sealed(document))


def read_sealed(path: Path) -> dict[str, Any]:
    """What `write_sealed` wrote, or one line if it is not that any more."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or was_altered(content):
        raise UserError(
            f"{path} was altered since it was written; the command that made it makes it again"
        )
    return content


def was_altered(document: Mapping[str, Any]) -> bool:
    """Whether a document that may be sealed is not as it was; earlier versions sealed few."""
    return SEAL in document and not is_intact(document)


def is_intact(document: Mapping[str, Any]) -> bool:
    """Whether a sealed document is as it was."""
    content = {key: value for key, value in document.items() if key != SEAL}
    return document.get(SEAL) == _document_digest(content)


def _document_digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(to_json(content).encode()).hexdigest()
