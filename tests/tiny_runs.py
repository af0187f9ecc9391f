"""Fixtures of several folders: a small text, a configuration that trains on it in seconds, and the
texts that published numbers were measured on."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkvflow.runs.config import RunConfig, make_config


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 20 kB of words in a fixed random order."""
    generator = np.random.default_rng(0)
    words = ["depth", "is", "a", "coordinate", "and", "the", "flow", "of", "weights", "runs", "on"]
    chosen = generator.choice(words, 4000)
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(" ".join(chosen) + "\n")
    return path


@pytest.fixture(scope="session")
def tiny(text: Path) -> Callable[..., RunConfig]:
    """`tiny(train={"steps": 5})`: a configuration with changes."""

    def make(**changes: dict[str, Any]) -> RunConfig:
        base: dict[str, Any] = {
            "model": {"d_model": 16, "num_steps": 2, "num_heads": 2, "context": 16},
            "data": {"spec": f"file:{text}?split=0.8,0.1,0.1", "tokenizer": "char"},
            "train": {
                "steps": 40,
                "batch_size": 4,
                "eval_every": 20,
                "eval_tokens": 512,
                "log_every": 4,
            },
            "optim": {"warmup": 5, "lr": 0.003},
            "checkpoint": {"every": 10},
        }
        return make_config(base, changes)

    return make


@pytest.fixture
def shared_data() -> Path:
    """`$QKVFLOW_TEST_DATA`, or `../shared/data` beside the repository."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    path = Path(os.environ.get("QKVFLOW_TEST_DATA", beside))
    if not path.is_dir():
        pytest.skip("no test data: set QKVFLOW_TEST_DATA to a directory with tinyshakespeare")
    return path
