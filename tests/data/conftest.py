"""A cache of its own for every test, and the texts that published numbers were measured on."""

from pathlib import Path

import pytest

from qkvflow.data import Corpus
from qkvflow.data.split import StoredSplit


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Token caches start empty."""
    path = tmp_path / "cache"
    monkeypatch.setenv("QKVFLOW_CACHE", str(path))
    return path


@pytest.fixture
def tiny() -> Corpus:
    """Three short splits in memory, several documents, several alphabets."""
    return Corpus(
        "memory",
        StoredSplit.of("train", [b"the cat sat.\nOn the mat\n" * 20, "naïve €5 🙂\n".encode()]),
        StoredSplit.of("validation", [b"the mat sat\n"]),
        StoredSplit.of("test", ["the naïve cat\n".encode()]),
    )
