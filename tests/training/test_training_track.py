"""Trackers: each writes somewhere a user can find, offline, and goes on there after a resume."""

import importlib
import importlib.util
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qkvflow.errors import UserError
from qkvflow.runs.config import RunConfig
from qkvflow.training.trackers import TRACKERS, make_tracker
from qkvflow.training.trackers.base import name_of, remembered

LINES = [
    {"kind": "train", "step": 1, "loss": 3.0, "lr": 0.1, "grad_norm": None, "tokens": 8},
    {"kind": "validation", "step": 1, "loss": 2.5, "bits_per_byte": 1.0},
]
RECORD = {
    "losses": {"validation": {"nats": 2.5}, "test": None},
    "params": {"total": 10},
    "speed": {"seconds": 1.5},
    "budget": {"steps": 2},
}
LIBRARIES = {"tensorboard": "tensorboardX", "wandb": "wandb", "trackio": "trackio"}


@pytest.fixture
def track(tiny: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`track(name)` tracks a run in two parts, as one that was resumed, and its report."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))

    def call(name: str) -> Path:
        if importlib.util.find_spec(LIBRARIES[name]) is None:
            pytest.skip(f"the extra '{name}' is not installed")
        directory = tmp_path / "runs" / "mine"
        directory.mkdir(parents=True)
        config = tiny(track={"name": name, "group": "together", "label": "gated"})
        (tmp_path / "report.html").write_text("<p>what came out</p>")
        for step in (1, 2):
            tracker = make_tracker(directory, config)
            for line in LINES:
                tracker.log({**line, "step": step})
            tracker.text("sample", "some <text>", step)
            if step == 2:
                tracker.finish(RECORD)
                tracker.page("report", tmp_path / "report.html")
            tracker.close()
        return directory

    return call


def test_the_trackers_and_a_misspelt_one(tiny: Callable[..., RunConfig], tmp_path: Path):
    assert set(TRACKERS) == {"none", *LIBRARIES}
    with pytest.raises(UserError, match="unknown tracker 'tensorbord'; did you mean tensorboard"):
        tiny(track={"name": "tensorbord"})
    tracker = make_tracker(tmp_path, tiny())
    tracker.log(LINES[0])
    tracker.finish(RECORD)
    tracker.close()
    assert list(tmp_path.iterdir()) == []


def test_names_of_runs(tiny: Callable[..., RunConfig]):
    assert name_of(Path("runs/mine"), tiny()) == "mine"
    config = tiny(track={"label": "gated", "group": "three"})
    assert name_of(Path("runs/three/runs/gated/seed-0"), config) == "three/gated/seed-0"


def events(path: Path) -> Iterator[Any]:
    """Of an event file, by its format: length, its check, the event, its check."""
    event = importlib.import_module("tensorboardX.proto.event_pb2").Event
    data = path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield event.FromString(data[12 : 12 + length])
        data = data[16 + length :]


def test_tensorboard(track: Any):
    files = sorted((track("tensorboard") / "tensorboard").iterdir())
    values = [
        (event.step, value)
        for file in files
        for event in events(file)
        for value in event.summary.value
    ]
    losses = [(step, v.simple_value) for step, v in values if v.tag == "train/loss"]
    assert losses == [(1, 3.0), (2, 3.0)]
    texts = {v.tag: v.tensor.string_val[0].decode() for _, v in values if v.tensor.string_val}
    assert "d_model: 16" in texts["config/text_summary"]
    assert "some <text>" in texts["sample/text_summary"]
    assert '"final/validation/nats": 2.5' in texts["record/text_summary"]


def wandb_records(path: Path) -> Iterator[Any]:
    """Of an offline file, by its format: a head of 7 bytes, then a log of blocks as LevelDB's."""
    record = importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    data, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # A whole record, or the last part of one.
            yield record.FromString(whole)
            whole = b""


def wandb_content(files: list[Path]) -> tuple[list[Any], list[dict[str, str]], dict[str, str]]:
    """Runs, lines of history and the summary."""

    def values(items: Any) -> dict[str, str]:
        return {item.key or ".".join(item.nested_key): item.value_json for item in items}

    runs, history, summary = [], [], {}
    for file in files:
        for record in wandb_records(file):
            if record.HasField("run"):
                runs.append(record.run)
            elif record.HasField("history"):
                history.append(values(record.history.item))
            elif record.HasField("summary"):
                summary |= values(record.summary.update)
    return runs, history, summary


def _losses(history: list[dict[str, str]]) -> list[float]:
    return [float(line["train/loss"]) for line in history if "train/loss" in line]


@pytest.mark.filterwarnings("ignore")  # Theirs, not ours.
def test_wandb_goes_on_in_the_same_run(track: Any):
    directory = track("wandb")
    files = sorted(directory.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2
    deadline = time.monotonic() + 30.0
    runs, history, summary = wandb_content(files)
    # Its files are written by a process of its own, which a busy machine delays.
    while len(_losses(history)) < 2 and time.monotonic() < deadline:
        time.sleep(0.5)
        runs, history, summary = wandb_content(files)
    assert {run.run_id for run in runs} == {remembered(directory, "wandb")}
    assert {run.run_group for run in runs} == {"together"}
    assert {run.display_name for run in runs} == {"together/gated/mine"}
    assert any("d_model" in each.value_json for run in runs for each in run.config.update)
    assert _losses(history) == [3.0, 3.0]
    assert any("sample" in key for line in history for key in line)
    assert any("report" in key for line in history for key in line)
    assert any("final/validation/nats" in key for key in summary)


@pytest.mark.filterwarnings("ignore")
def test_trackio_goes_on_in_the_same_run(track: Any):
    directory = track("trackio")
    import trackio

    assert list((directory.parents[1] / "trackio").rglob("*.db"))
    name = remembered(directory, "trackio")
    found = [run for run in trackio.Api().runs("qkvflow") if run.name == name]
    assert len(found) == 1


def test_a_missing_library_says_how_to_get_it(
    tiny: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import sys

    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"pip install 'qkvflow\[wandb\]'"):
        make_tracker(tmp_path, tiny(track={"name": "wandb"}))
