import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from comparisons import environment, forked_workers, write_text


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "words.txt")


@pytest.fixture(scope="session", autouse=True)
def workers_compile_as_tests_do() -> Iterator[None]:
    """Worker processes inherit this environment."""
    with patch.dict(os.environ, environment()):
        yield


@pytest.fixture
def forked() -> Iterator[None]:
    """For tests of what workers do, and not of how they are started."""
    with forked_workers():
        yield
