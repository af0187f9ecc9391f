"""Whole runs: what they leave behind, that they repeat, that they learn, and a full disk."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import fake_sample, pipe, start

from qkvflow.errors import UserError
from qkvflow.records import read_record
from qkvflow.runs.config import RunConfig, make_config
from qkvflow.runs.rundir import read_lines
from qkvflow.training import resume, train


def metrics_of(directory: Path) -> list[dict[str, Any]]:
    lines = read_lines(directory / "metrics.jsonl")
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


@pytest.fixture(scope="module")
def run(tiny: Callable[..., RunConfig], tmp_path_factory: Any) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "run"
    train(tiny(), directory, sample=fake_sample)
    return directory


def test_everything_is_there(run: Path, tiny: Callable[..., RunConfig]):
    names = {path.name for path in run.iterdir() if not path.name.startswith(".")}
    files = {"config.yaml", "metrics.jsonl", "record.json", "samples.txt", "loss.png"}
    assert names == files | {"checkpoints", "tokenizer.json"}
    record = read_record(run / "record.json")
    assert record.finished
    content = record.content
    assert content["budget"]["steps"] == 40
    assert content["budget"]["tokens"] == 40 * 4 * 16
    assert content["budget"]["flops"] == 40 * content["flops"]["per_step"]
    assert content["memory"]["peak_resident_bytes"] > 1e7
    assert content["memory"]["program_bytes"] > 1e4
    assert content["data"]["splits"]["test"]["tokens"] > 0
    assert content["losses"]["test"]["nats"] > 0
    assert content["label"] == "standard"
    assert content["model"]["config"]["d_model"] == 16
    assert content["versions"]["jax"]
    assert content["skipped_updates"] == 0


def test_records_have_the_documented_fields(run: Path):
    """Every field of the table in docs/records.md, and no other (a comparison adds one)."""
    text = (Path(__file__).parents[2] / "docs" / "records.md").read_text()
    table = text.split("`record.json`:")[1].split("## An experiment directory")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert set(json.loads((run / "record.json").read_text())) == documented - {"evaluations"}
    kinds = {"train": set(), "validation": set()}
    for line in read_lines(run / "metrics.jsonl"):
        kinds[line["kind"]] |= set(line)
    for kind, fields in kinds.items():
        described = re.search(rf'{{"kind": "{kind}", ([^}}]*)}}', text)
        assert described is not None
        assert fields == {"kind", *re.findall(r'"(\w+)"', described[1])}


def test_the_same_twice_and_another_seed(run: Path, tiny: Callable[..., RunConfig], tmp_path: Path):
    train(tiny(train={"steps_per_dispatch": 3}), tmp_path / "again", sample=fake_sample)
    assert metrics_of(tmp_path / "again") == metrics_of(run)
    assert (tmp_path / "again" / "samples.txt").read_text() == (run / "samples.txt").read_text()
    train(tiny(train={"seed": 1}), tmp_path / "other")
    assert metrics_of(tmp_path / "other")[0]["loss"] != metrics_of(run)[0]["loss"]


def test_the_resolved_configuration_repeats_the_run(run: Path, tmp_path: Path):
    from qkvflow.runs.config_files import load_config

    train(load_config(run / "config.yaml"), tmp_path / "again")
    assert metrics_of(tmp_path / "again") == metrics_of(run)


def test_a_target_loss_stops_early(tiny: Callable[..., RunConfig], tmp_path: Path):
    config = tiny(train={"target_loss": 10.0, "eval_every": 8})
    record = train(config, tmp_path / "run")
    assert record["budget"]["steps"] == 8
    assert record["status"] == "finished"
    assert resume(tmp_path / "run") == record


def test_a_corpus_too_large_for_the_device_gives_the_same_run(
    run: Path, tiny: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for module in ("evaluate", "loop"):
        room = sys.modules[f"qkvflow.training.{module}"]
        monkeypatch.setattr(room, "fits_on_device", lambda *_: False)
    train(tiny(), tmp_path / "mapped")
    mapped, plain = metrics_of(tmp_path / "mapped"), metrics_of(run)
    assert [x["step"] for x in mapped] == [x["step"] for x in plain]
    losses = [[line["loss"] for line in lines] for lines in (mapped, plain)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_a_markov_source_is_learnt_to_its_floor(tmp_path: Path):
    config = make_config(
        {
            "model": {"d_model": 16, "num_steps": 1, "num_heads": 2, "context": 16},
            "data": {"spec": "source:markov?states=4&order=1&length=50000"},
            "train": {"steps": 250, "batch_size": 16, "eval_every": 250, "eval_tokens": None},
            "optim": {"lr": 0.01, "warmup": 10},
        }
    )
    record = train(config, tmp_path / "run")
    floor, loss = record["data"]["floor"], record["losses"]["test"]["nats"]
    assert floor - 0.02 < loss < floor + 0.05


def test_an_existing_run_is_left_as_it_is(run: Path, tiny: Callable[..., RunConfig]):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with pytest.raises(UserError, match=r"holds a run already; continue it with 'qkvflow resume"):
        train(tiny(), run)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_two_processes_do_not_share_a_run(run: Path):
    from qkvflow.runs.rundir import locked

    (run / "record.json").rename(run / "kept.json")
    try:
        with locked(run), pytest.raises(UserError, match="another process is working"):
            resume(run)
    finally:
        (run / "kept.json").rename(run / "record.json")


@pytest.mark.parametrize("limit", [300, 2500])
def test_a_disk_that_fails_loses_nothing(
    limit: int, tiny: Callable[..., RunConfig], tmp_path: Path
):
    """No file can grow beyond a limit: not the configuration, or not the first checkpoint."""
    out = tmp_path / "run"
    config = tiny(train={"steps": 60, "log_every": 1})
    reader, writer = pipe()
    process = start(
        "train", out, tmp_path / "compiled", config.to_dict(), largest_file=limit, said=writer
    )
    process.join()
    assert process.exitcode == 2
    said = reader.recv()
    assert f"cannot write {out}" in said
    assert "\n" not in said
    assert (out / "config.yaml").exists() == (limit == 2500)
    if limit == 2500:
        assert resume(out)["status"] == "finished"
        assert [x["step"] for x in read_lines(out / "metrics.jsonl") if x["kind"] == "train"] == [
            *range(1, 61)
        ]


def test_a_full_disk_is_refused_before_training(
    tiny: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Usage:
        free = 1000

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage)
    with pytest.raises(UserError, match=r"cannot write .*0.0 MB are free; make room and run"):
        train(tiny(), tmp_path / "run")
    assert read_lines(tmp_path / "run" / "metrics.jsonl") == []
    monkeypatch.undo()
    assert resume(tmp_path / "run")["status"] == "finished"
