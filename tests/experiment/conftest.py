from pathlib import Path

import pytest
from comparisons import write_text


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "words.txt")
