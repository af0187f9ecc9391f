"""Exports and `qkvflow.load`; files that are cut short, altered or foreign are refused."""

import dataclasses
import json
import resource
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import qkvflow
from qkvflow.errors import UserError
from qkvflow.runs.card import model_card
from qkvflow.runs.config import RunConfig
from qkvflow.runs.export import export
from qkvflow.training import train


@pytest.fixture(scope="module")
def run(tiny: Callable[..., RunConfig], tmp_path_factory: Any) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "run"
    config = tiny(model={"name": "hybrid", "d_time": 8, "num_frequencies": 2}, train={"steps": 6})
    train(config, directory)
    return directory


@pytest.fixture
def exported(run: Path, tmp_path: Path) -> Path:
    return export(run, tmp_path / "export")


def test_a_run_and_its_export_are_the_same_model(run: Path, exported: Path):
    names = {"model.safetensors", "config.json", "tokenizer.json", "README.md"}
    assert {path.name for path in exported.iterdir()} == names
    one, other = qkvflow.load(run), qkvflow.load(exported)
    tokens = jnp.asarray(one.tokenizer.encode("depth is a flow").astype(np.int32))[None]
    forward = eqx.filter_jit(lambda model: model(tokens))
    np.testing.assert_array_equal(forward(one.model), forward(other.model))
    assert one.config == other.config
    assert other.tokenizer.decode(np.asarray(tokens[0])) == "depth is a flow"
    assert qkvflow.load(exported / "model.safetensors").config == one.config
    assert "| validation |" in (exported / "README.md").read_text()
    assert qkvflow.load(exported, step=int(one.step or 0)).step == one.step
    with pytest.raises(UserError, match="has no checkpoints; leave --checkpoint 7000 out"):
        qkvflow.load(exported, step=7000)


def test_a_card_has_the_losses_of_its_own_weights(run: Path):
    trained, record = qkvflow.load(run), json.loads((run / "record.json").read_text())
    assert "| validation |" in model_card(trained, record)
    assert "| validation |" not in model_card(dataclasses.replace(trained, step=3), record)


def test_an_existing_directory_is_not_overwritten(run: Path, exported: Path):
    with pytest.raises(UserError, match="exists already"):
        export(run, exported)


def test_an_export_that_cannot_be_written_leaves_nothing(run: Path, tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"):
        export(run, tmp_path / "file" / "export")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_one_line_and_leaves_nothing(run: Path, tmp_path: Path):
    """No file can grow beyond a limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(UserError, match=r"cannot write .* make room or choose another") as said:
            export(run, tmp_path / "export")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(said.value)
    assert not list(tmp_path.iterdir())
    assert qkvflow.load(export(run, tmp_path / "export")).step == 6


def refused(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        qkvflow.load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_not_a_model_is_refused(tmp_path: Path):
    assert "does not exist" in refused(tmp_path / "absent")
    assert "neither a run directory nor an export" in refused(tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 8, 40, 200, -1])
def test_weights_cut_short(exported: Path, keep: int):
    path = exported / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert "export it again" in refused(exported)


def test_weights_with_a_header_beyond_reason(exported: Path):
    path = exported / "model.safetensors"
    for size in (1 << 62, 200 << 20, 0):
        path.write_bytes(struct.pack("<Q", size) + path.read_bytes()[8:])
        assert "export it again" in refused(exported)


def test_weights_that_are_something_else(exported: Path):
    path = exported / "model.safetensors"
    for content in (b"\x80\x04\x95", b"PK\x03\x04" + b"\0" * 100, b"hello" * 100, b"\xff" * 64):
        path.write_bytes(content)
        assert "export it again" in refused(exported)


def without_hashes(exported: Path) -> None:
    """As exports of earlier versions are."""
    path = exported / "config.json"
    content = json.loads(path.read_text())
    del content["files"], content["sha256"]
    path.write_text(json.dumps(content))


def test_weights_of_another_model(exported: Path):
    from safetensors.numpy import load_file, save_file

    without_hashes(exported)
    assert qkvflow.load(exported).step is not None
    path = exported / "model.safetensors"
    arrays = load_file(path)
    save_file({**arrays, "embedding": np.zeros((3, 3), np.float32)}, path)
    assert "is of another model: embedding" in refused(exported)
    save_file({name: array for name, array in arrays.items() if name != "embedding"}, path)
    assert "is of another model: embedding is absent" in refused(exported)
    save_file({**arrays, "extra": np.zeros(3, np.float32)}, path)
    assert "is of another model: extra" in refused(exported)
    save_file({**arrays, "embedding": arrays["embedding"].astype(np.float16)}, path)
    assert "is of another model: embedding" in refused(exported)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "cannot be read as JSON"),
        ("[1]", "not a qkvflow export"),
        ('{"model_type": "gpt2"}', "not a qkvflow export"),
        ('{"format": "qkvflow", "version": 99, "config": {}}', "format 99"),
        (
            '{"format": "qkvflow", "version": 1, "config": {"model": {"name": "nonesuch"}}}',
            "unknown model 'nonesuch'",
        ),
        (
            '{"format": "qkvflow", "version": 1, "config": {"model": {"d_model": "__import__"}}}',
            "model.d_model must be a whole number",
        ),
    ],
)
def test_configurations_that_are_not_ours(exported: Path, content: str, said: str):
    (exported / "config.json").write_text(content)
    assert said in refused(exported)


def test_a_tokenizer_that_is_not_ours(exported: Path):
    without_hashes(exported)
    (exported / "tokenizer.json").write_text(json.dumps({"qkvflow": "char", "alphabet": 3}))
    assert "tokenizer.json" in refused(exported)
    (exported / "tokenizer.json").unlink()
    assert "no tokenizer" in refused(exported)


def test_a_run_without_checkpoints(run: Path, tmp_path: Path):
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert "kept no checkpoint" in refused(tmp_path / "run")
    (tmp_path / "run" / "record.json").unlink()
    assert "no checkpoint yet" in refused(tmp_path / "run")
