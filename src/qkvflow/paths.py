"""Where qkvflow keeps what it can make again: token caches and compiled programs."""

import os
from pathlib import Path


def cache_dir(*parts: str) -> Path:
    """`$QKVFLOW_CACHE`, or `qkvflow` in the user's cache directory; created on demand."""
    base = os.environ.get("QKVFLOW_CACHE")
    if base is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        base = Path(home) / "qkvflow"
    path = Path(base, *parts)
    path.mkdir(parents=True, exist_ok=True)
    return path
