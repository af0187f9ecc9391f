"""Trackers: each writes somewhere a user can find, offline."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from qkvflow.errors import UserError
from qkvflow.runs.config import RunConfig
from qkvflow.training.trackers import TRACKERS, make_tracker

LINES = [
    {"kind": "train", "step": 1, "loss": 3.0, "lr": 0.1, "grad_norm": None, "tokens": 8},
    {"kind": "validation", "step": 1, "loss": 2.5, "bits_per_byte": 1.0},
]


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def test_the_trackers_and_a_misspelt_one(tiny: Callable[..., RunConfig], tmp_path: Path):
    assert set(TRACKERS) == {"none", "tensorboard", "trackio", "wandb"}
    with pytest.raises(UserError, match="unknown tracker 'tensorbord'; did you mean tensorboard"):
        tiny(track={"name": "tensorbord"})
    tracker = make_tracker(tmp_path, tiny())
    tracker.log(LINES[0])
    tracker.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "library"),
    [("tensorboard", "tensorboardX"), ("wandb", "wandb"), ("trackio", "trackio")],
)
@pytest.mark.filterwarnings("ignore")  # Theirs, not ours.
def test_every_tracker_writes_offline(
    name: str,
    library: str,
    tiny: Callable[..., RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    if not installed(library):
        pytest.skip(f"the extra '{name}' is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    tracker = make_tracker(tmp_path, tiny(track={"name": name}))
    for line in LINES:
        tracker.log(line)
    tracker.text("sample", "some text", 1)
    tracker.close()
    pattern = {"tensorboard": "tensorboard/*tfevents*", "wandb": "wandb/offline-run-*/*.wandb"}
    found = list(tmp_path.glob(pattern.get(name, "trackio/**/*.db")))
    assert found


def test_a_missing_library_says_how_to_get_it(
    tiny: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import sys

    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"pip install 'qkvflow\[wandb\]'"):
        make_tracker(tmp_path, tiny(track={"name": "wandb"}))
