"""Where qkvflow keeps what it can make again: token caches and compiled programs."""

import os
from pathlib import Path

from qkvflow.errors import UserError


def cache_dir(*parts: str) -> Path:
    """`$QKVFLOW_CACHE`, or `qkvflow` in the user's cache directory; created on demand."""
    base = os.environ.get("QKVFLOW_CACHE")
    if not base:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        base = Path(home) / "qkvflow"
    path = Path(base, *parts)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the cache directory {path} cannot be made ({error.strerror}); set QKVFLOW_CACHE to a "
            "directory that can be written"
        ) from None
    return path
