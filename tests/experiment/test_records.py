"""Records on disk: writing, reading, merging."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkvflow.digests import sealed
from qkvflow.errors import UserError
from qkvflow.files import write_json
from qkvflow.records import collect, curve, read_record, write_record


def content(label: str = "standard", seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A finished run's record with the fields that are read."""
    loss = {"nats": 2.0, "standard_error": 0.01, "bits_per_byte": 2.9, "perplexity": 7.4}
    record: dict[str, Any] = {
        "schema": 1,
        "status": "finished",
        "error": None,
        "label": label,
        "model": {"name": "standard", "config": {"d_model": 64}},
        "seed": seed,
        "params": {"total": 1000},
        "flops": {"per_token": {"forward": 1, "training": 3}, "per_step": 300},
        "data": {"spec": "stdlib", "tokenizer": "bytes", "vocab_size": 256, "sha256": "d1"},
        "budget": {"steps": 100, "tokens": 10_000, "flops": 30_000, "seconds": 1.5},
        "training": {"batch_size": 8, "context": 128, "optim": {"name": "adamw", "lr": 1e-3}},
        "losses": {"train": 1.9, "validation": loss, "test": loss, "selected_step": 100},
        "speed": {"tokens_per_second": 1e4},
    }
    return record | changes


def put(experiment: Path, record: dict[str, Any]) -> Path:
    path = experiment / "runs" / record["label"] / f"seed-{record['seed']}" / "record.json"
    write_record(path, record)
    return path


def test_round_trip(tmp_path: Path):
    path = put(tmp_path, content(seed=3))
    record = read_record(path)
    assert (record.label, record.seed, record.finished, record.error) == ("standard", 3, True, None)
    assert record.content == sealed(content(seed=3))
    assert record.run_dir == path.parent
    assert record.loss("test", "nats") == 2.0
    assert record.section("params")["total"] == 1000
    assert record.section("memory") == {}


def test_numbers_that_json_lacks_become_null(tmp_path: Path):
    path = tmp_path / "x.json"
    write_json(
        path, {"a": float("nan"), "b": [float("-inf"), np.float32(1.5), np.int64(2)], "c": ()}
    )
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {
        "a": None,
        "b": [None, 1.5, 2],
        "c": [],
    }


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = put(tmp_path, content())
    before = path.read_bytes()

    def broken(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="disk full"):
        write_record(path, content(error="other"))
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == ["record.json"]


def test_the_bytes_are_on_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    events: list[str] = []
    real: dict[str, Callable[..., Any]] = {"fsync": os.fsync, "replace": os.replace}

    def noted(name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            events.append(name)
            return real[name](*arguments)

        return call

    for name in real:
        monkeypatch.setattr(os, name, noted(name))
    put(tmp_path, content())
    assert events == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": 1, "status": "fini', "not complete JSON"),
        ("", "not complete JSON"),
        ('{"version": 3}', "not a record"),
        ("[1, 2]", "not a record"),
        (json.dumps(content(schema=2)), "schema 2"),
        (json.dumps(content(status="running")), "finished or failed"),
        (json.dumps(content(label="")), "label"),
        (json.dumps(content() | {"seed": "0"}), "whole number"),
        (json.dumps(content() | {"losses": None}), "'losses'"),
        (json.dumps(content() | {"losses": {}}), "'losses.validation'"),
    ],
)
def test_foreign_files_are_refused_in_one_line(tmp_path: Path, text: str, message: str):
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        read_record(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_binary_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match="does not exist"):
        read_record(tmp_path / "record.json")
    (tmp_path / "record.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not complete JSON"):
        read_record(tmp_path / "record.json")


def test_what_could_not_be_read_is_not_written(tmp_path: Path):
    with pytest.raises(UserError, match="whole number"):
        write_record(tmp_path / "record.json", content() | {"seed": 1.0})
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_failed_early_is_a_record(tmp_path: Path):
    failed = {"schema": 1, "status": "failed", "error": "out of memory", "label": "a", "seed": 0}
    record = read_record(put(tmp_path, failed))
    assert (record.finished, record.error) == (False, "out of memory")
    assert record.loss("test", "nats") is None


def test_loss_that_is_not_finite_is_none(tmp_path: Path):
    losses = {"validation": {"nats": float("nan")}, "test": None}
    record = read_record(put(tmp_path, content(losses=losses)))
    assert record.loss("validation", "nats") is None
    assert record.loss("test", "nats") is None


def test_collect_separates_finished_failed_and_unfinished(tmp_path: Path):
    put(tmp_path, content("b", 1))
    put(tmp_path, content("b", 0))
    put(tmp_path, content("a", 0, status="failed", error="diverged"))
    (tmp_path / "runs" / "c" / "seed-7").mkdir(parents=True)
    (tmp_path / "runs" / "c" / "notes.txt").write_text("")
    records = collect(tmp_path)
    assert [(r.label, r.seed) for r in records.finished] == [("b", 0), ("b", 1)]
    assert [(r.label, r.error) for r in records.failed] == [("a", "diverged")]
    assert records.unfinished == (("c", 7),)
    assert records.labels == ("a", "b", "c")
    assert [r.seed for r in records.of("b")] == [0, 1]
    assert [r.seed for r in records.failures("a")] == [0]
    assert records.notes == ()


def test_collect_refuses_what_is_no_experiment(tmp_path: Path):
    with pytest.raises(UserError, match="not an experiment"):
        collect([tmp_path])
    with pytest.raises(UserError, match="no experiment directory"):
        collect([])


def test_equal_configurations_are_pooled(tmp_path: Path):
    one, two = tmp_path / "one", tmp_path / "two"
    put(one, content(seed=0))
    put(one, content(seed=1, status="failed", error="killed"))
    put(two, content(seed=1))
    put(two, content(seed=2))
    put(two, content(seed=0, params={"total": 1000, "from": "two"}))
    records = collect([one, two, one])
    assert [(r.label, r.seed) for r in records.finished] == [("standard", s) for s in (0, 1, 2)]
    assert records.failed == ()
    assert records.finished[0].experiment == one.resolve()
    assert sum("several experiments" in note for note in records.notes) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"name": "standard", "config": {"d_model": 32}}},
        {"budget": {"steps": 200, "tokens": 20_000, "flops": 60_000, "seconds": 3.0}},
        {"training": {"batch_size": 8, "context": 128, "optim": {"name": "adamw", "lr": 1e-4}}},
        {"data": {"spec": "stdlib", "tokenizer": "bytes", "vocab_size": 256, "sha256": "d2"}},
    ],
)
def test_different_configurations_get_different_labels(tmp_path: Path, change: dict[str, Any]):
    one, two = tmp_path / "one", tmp_path / "two"
    put(one, content(seed=0))
    put(two, content(seed=0, **change))
    put(two, content(seed=1, status="failed", error="x"))
    put(two, content("tong"))
    (two / "runs" / "standard" / "seed-2").mkdir()
    records = collect([one, two])
    assert [r.label for r in records.finished] == ["standard@one", "standard@two", "tong"]
    assert [r.label for r in records.failed] == ["standard@two"]
    assert records.unfinished == (("standard@two", 2),)
    assert len(records.notes) == 1


def test_experiments_of_one_name_are_told_apart_by_their_parents(tmp_path: Path):
    for place, width in (("x", 1), ("y", 2)):
        model = {"name": "standard", "config": {"d_model": width}}
        put(tmp_path / place / "compare", content(model=model))
    records = collect([tmp_path / "x" / "compare", tmp_path / "y" / "compare"])
    assert records.labels == ("standard@x/compare", "standard@y/compare")


def test_one_label_with_two_models_in_one_experiment_is_an_error(tmp_path: Path):
    put(tmp_path, content(seed=0))
    put(tmp_path, content(seed=1, model={"name": "tong", "config": {}}))
    with pytest.raises(UserError, match="different configurations"):
        collect(tmp_path)


def test_one_seed_twice_in_one_experiment_is_an_error(tmp_path: Path):
    put(tmp_path, content(seed=0))
    write_record(tmp_path / "runs" / "standard" / "seed-1" / "record.json", content(seed=0))
    with pytest.raises(UserError, match="remove one"):
        collect(tmp_path)


def line(kind: str, step: int, loss: float) -> str:
    return json.dumps({"kind": kind, "step": step, "tokens": step * 10, "loss": loss, "seconds": 1})


def test_curve_of_a_killed_and_continued_run(tmp_path: Path):
    lines = [
        line("train", 1, 4.0),
        line("validation", 1, 4.1),
        line("train", 2, 3.0),
        line("train", 3, 2.9)[:12] + line("train", 2, 3.5),  # killed here, continued from step 1
        line("train", 2, 3.6),
        line("validation", 2, 3.7),
        line("train", 3, 1.0)[:20],
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    found = curve(tmp_path)
    assert [(e["step"], e["loss"]) for e in found.train] == [(1, 4.0), (2, 3.6)]
    assert [(e["step"], e["loss"]) for e in found.validation] == [(1, 4.1), (2, 3.7)]
    assert found.torn_lines == 2


def test_curve_of_a_run_that_has_hardly_begun(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"kind": "tr')
    assert curve(tmp_path).train == ()


def test_curve_refuses_other_files(tmp_path: Path):
    with pytest.raises(UserError, match="does not exist"):
        curve(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("Dear diary,\nnothing happened.\n")
    with pytest.raises(UserError, match="not a file of training metrics"):
        curve(tmp_path)
