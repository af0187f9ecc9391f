"""Writing files that hold either their old content or all of the new, and strict JSON."""

import json
import math
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def write_whole(path: Path, text: str) -> None:
    """Replace a file so that no reader ever sees part of it."""
    # The temporary file is in the same directory because a rename is atomic only within a file
    # system; both are synced because a rename may reach the disk before the bytes it names.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: str | Path, content: Mapping[str, Any]) -> None:
    """Replace a file by strict JSON, making its directory if there is none."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, to_json(content, 1) + "\n")


def to_json(content: Any, indent: int | None = None) -> str:
    """Strict JSON: NaN and infinities, which it does not know, become null."""
    return json.dumps(_strict(content), indent=indent, allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _strict(each) for key, each in value.items()}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list | tuple):
        return [_strict(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
