"""Fixtures of several folders: a small text, a configuration that trains on it in seconds, and the
texts that published numbers were measured on."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import fake_sample

from qkvflow.runs.config import RunConfig, make_config
from qkvflow.training import loop, train


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
                "samples": "none",
            },
            "optim": {"warmup": 5, "lr": 0.003},
            "checkpoint": {"every": 10},
        }
        return make_config(base, changes)

    return make


@pytest.fixture(scope="session")
def finished(tiny: Callable[..., RunConfig], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `tiny()` with samples that has ended: to be looked at or copied, not changed."""
    directory = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "sample_text", fake_sample)
        train(tiny(train={"samples": "evaluations"}), directory)
    return directory


@pytest.fixture
def unfinished(finished: Path, tmp_path: Path) -> Path:
    """The same run as if it had been killed after step 30."""
    directory = tmp_path / "unfinished"
    shutil.copytree(finished, directory)
    (directory / "record.json").unlink()
    shutil.rmtree(directory / "checkpoints" / "40")
    return directory


@pytest.fixture
def shared_data() -> Path:
    """`$QKVFLOW_TEST_DATA`, or `../shared/data` beside the repository."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    path = Path(os.environ.get("QKVFLOW_TEST_DATA", beside))
    if not path.is_dir():
        pytest.skip("no test data: set QKVFLOW_TEST_DATA to a directory with tinyshakespeare")
    return path
