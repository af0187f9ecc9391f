"""Trackers: each writes somewhere a user can find, offline."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from qkvflow.errors import UserError
from qkvflow.runs.config import RunConfig
from qkvflow.training.track import make_tracker

LINES = [
    {"kind": "train", "step": 1, "loss": 3.0, "lr": 0.1, "grad_norm": None, "tokens": 8},
    {"kind": "validation", "step": 1, "loss": 2.5, "bits_per_byte": 1.0},
]


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


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
