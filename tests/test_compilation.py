"""The cache of compiled programs, after a process was killed while it wrote there; and those that a
process remembers."""

from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from qkvflow.cli import _notes
from qkvflow.compilation import shared
from qkvflow.paths import cache_dir

pytestmark = pytest.mark.filterwarnings("always:Error reading persistent:UserWarning")
SETTING = "jax_compilation_cache_dir"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of compiled programs that nobody else uses."""
    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path))
    before = jax.config.values[SETTING]
    jax.config.update(SETTING, str(cache_dir("xla")))
    reset_cache()
    yield cache_dir("xla")
    jax.config.update(SETTING, before)
    reset_cache()


def compiled() -> None:
    jax.clear_caches()
    with _notes():
        jax.jit(lambda x: 3.0 * x + 1.0)(jnp.arange(7.0))


def test_half_a_program_is_met_once(cache: Path, capsys: pytest.CaptureFixture[str]):
    compiled()
    entries = list(cache.glob("*-cache"))
    assert entries
    for path in entries:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    other = cache / "jit_another-0-cache"
    other.write_bytes(b"")
    capsys.readouterr()
    compiled()
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"note: a compiled program in {cache} could not be read")
    assert not any("Warning" in line for line in said)
    assert other.exists()
    compiled()
    assert capsys.readouterr().err == ""


def test_a_directory_of_others_is_left_alone(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    compiled()
    [path, *_] = cache.glob("*-cache")
    monkeypatch.setenv("QKVFLOW_CACHE", str(cache / "other"))
    path.write_bytes(b"")
    compiled()
    assert "it was compiled anew" in capsys.readouterr().err
    assert path.exists()


def test_what_is_made_of_equal_arguments_is_made_once():
    made = []

    @shared
    def make(*args: object) -> object:
        made.append(args)
        return object()

    assert make(1, "a") is make(1, "a")
    assert len(made) == 1
    array = np.zeros(2)
    assert make(array) is not make(array)
    for number in range(2, 10):
        make(number)
    assert make(9) is make(9)
    before = len(made)
    make(1, "a")  # Eight others came after it.
    assert len(made) == before + 1
