"""Whole runs: what they leave behind, that they repeat, that they learn, and a full disk."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from own_members import kept_registries
from processes import pipe, start

from qkvflow.errors import UserError
from qkvflow.evaluation import evaluate
from qkvflow.generation.text import sample_text
from qkvflow.records import read_record
from qkvflow.runs.config import RunConfig, make_config
from qkvflow.runs.config_files import load_config
from qkvflow.runs.corpus import load_split
from qkvflow.runs.load import load_run
from qkvflow.runs.rundir import locked, read_lines
from qkvflow.training import dispatch, loop, program, resume, train
from qkvflow.training.step import make_multi_step
from qkvflow.zoo.registry import OPTIMISERS


def metrics_of(directory: Path) -> list[dict[str, Any]]:
    lines = read_lines(directory / "metrics.jsonl")
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def test_everything_is_there(finished: Path, tiny: Callable[..., RunConfig]):
    names = {path.name for path in finished.iterdir() if not path.name.startswith(".")}
    files = {"config.yaml", "metrics.jsonl", "record.json", "samples.txt", "loss.png"}
    assert names == files | {"checkpoints", "tokenizer.json"}
    record = read_record(finished / "record.json")
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


def test_records_have_the_documented_fields(finished: Path):
    """Every field of the table in docs/records.md, and no other; some have a reason to be absent:
    no evaluations of a comparison, no probe, no solver, nothing altered."""
    text = (Path(__file__).parents[2] / "docs" / "records.md").read_text()
    table = text.split("`record.json`:")[1].split("## An experiment directory")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    absent = {"evaluations", "accuracy", "solver", "altered"}
    assert absent < documented
    assert set(json.loads((finished / "record.json").read_text())) == documented - absent
    kinds = {"train": set(), "validation": set()}
    for line in read_lines(finished / "metrics.jsonl"):
        kinds[line["kind"]] |= set(line)
    for kind, fields in kinds.items():
        described = re.search(rf'{{"kind": "{kind}", ([^}}]*)}}', text)
        assert described is not None
        assert fields == {"kind", *re.findall(r'"(\w+)"', described[1])}


def test_the_same_twice_and_another_seed(
    finished: Path, tiny: Callable[..., RunConfig], tmp_path: Path
):
    again = tiny(train={"steps_per_dispatch": 3, "samples": "evaluations"})
    train(again, tmp_path / "again")
    assert metrics_of(tmp_path / "again") == metrics_of(finished)
    assert (tmp_path / "again" / "samples.txt").read_text() == (
        finished / "samples.txt"
    ).read_text()
    train(tiny(train={"seed": 1}), tmp_path / "other")
    assert metrics_of(tmp_path / "other")[0]["loss"] != metrics_of(finished)[0]["loss"]


def test_the_resolved_configuration_repeats_the_run(finished: Path, tmp_path: Path):
    train(load_config(finished / "config.yaml"), tmp_path / "again")
    assert metrics_of(tmp_path / "again") == metrics_of(finished)


def test_a_target_loss_stops_early(tiny: Callable[..., RunConfig], tmp_path: Path):
    config = tiny(train={"target_loss": 10.0, "eval_every": 8})
    record = train(config, tmp_path / "run")
    assert record["budget"]["steps"] == 8
    assert record["status"] == "finished"
    assert resume(tmp_path / "run") == record
    # Killed while it wrote its record: it is at its end all the same.
    (tmp_path / "run" / "record.json").unlink()
    again = resume(tmp_path / "run")
    assert (again["budget"]["steps"], again["losses"]) == (8, record["losses"])


def test_a_corpus_too_large_for_the_device_gives_the_same_run(
    finished: Path, tiny: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dispatch, "fits_on_device", lambda *_: False)
    train(tiny(), tmp_path / "mapped")
    mapped, plain = metrics_of(tmp_path / "mapped"), metrics_of(finished)
    assert [x["step"] for x in mapped] == [x["step"] for x in plain]
    losses = [[line["loss"] for line in lines] for lines in (mapped, plain)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_a_markov_source_is_learnt_to_its_floor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop, "sample_text", sample_text)
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
    # Its symbols are no text, and samples are of them all the same.
    [(step, text)] = samples_of(tmp_path / "run")
    assert step == 250
    assert set(text) == set("abcd")


def test_text_without_line_breaks_has_samples(
    tiny: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Not every alphabet has what they begin with."""
    monkeypatch.setattr(loop, "sample_text", sample_text)
    (tmp_path / "one-line.txt").write_text("depth is a coordinate and " * 200)
    data = {"spec": f"file:{tmp_path / 'one-line.txt'}?split=0.8,0.1,0.1", "tokenizer": "char"}
    config = tiny(data=data, train={"steps": 2, "eval_every": 1, "samples": "evaluations"})
    assert train(config, tmp_path / "run")["status"] == "finished"
    assert [step for step, text in samples_of(tmp_path / "run") if len(text) == 200] == [1, 2]


def samples_of(directory: Path) -> list[tuple[int, str]]:
    parts = (directory / "samples.txt").read_text().split("--- step ")[1:]
    split = [part.removesuffix("\n\n").split(" ---\n") for part in parts]
    return [(int(step), text) for step, text in split]


def test_a_sample_that_fails_says_so(
    tiny: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def broken(*_: Any, **__: Any) -> str:
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(loop, "sample_text", broken)
    config = tiny(train={"steps": 2, "samples": "last"})
    assert train(config, tmp_path / "run")["status"] == "finished"
    said = (tmp_path / "run" / "samples.txt").read_text()
    assert said == "--- step 2 ---\n(no sample: out of memory)\n\n"


def test_runs_of_one_shape_share_their_program(
    tiny: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Other seeds, learning rates, warm-ups and lengths are arguments; another optimiser is not. In
    one process another seed is not even traced again."""
    compiled: list[str] = []
    compile = jax.stages.Lowered.compile

    def noted(lowered: Any, *args: Any, **kwargs: Any) -> Any:
        compiled.append(lowered.as_text())
        return compile(lowered, *args, **kwargs)

    monkeypatch.setattr(jax.stages.Lowered, "compile", noted)
    one = train(tiny(train={"steps": 4}), tmp_path / "one")
    changes = {"optim": {"lr": 0.1, "warmup": 1}, "train": {"seed": 1, "steps": 6}}
    two = train(tiny(**changes), tmp_path / "two")
    assert one["losses"]["train"] != two["losses"]["train"]
    assert len(compiled) == 2
    assert compiled[0] == compiled[1]
    train(tiny(optim={"beta2": 0.9}, train={"steps": 4}), tmp_path / "other")
    assert compiled[2] != compiled[0]
    made: list[Any] = []

    def noted_step(*args: Any, **kwargs: Any) -> Any:
        made.append(args)
        return make_multi_step(*args, **kwargs)

    monkeypatch.setattr(program, "make_multi_step", noted_step)
    again = train(tiny(train={"steps": 4}), tmp_path / "again")
    seed = train(tiny(train={"steps": 4, "seed": 2}), tmp_path / "seed")
    assert not made
    assert again["losses"] == one["losses"]
    assert seed["losses"] != one["losses"]
    train(tiny(train={"steps": 4}, optim={"lr": 0.2}), tmp_path / "rate")
    assert len(made) == 1


def test_an_optimiser_of_the_same_name_is_not_taken_for_another(
    tiny: Callable[..., RunConfig], tmp_path: Path
):
    losses = []
    for rate in (0.0, 0.5):
        with kept_registries():
            OPTIMISERS.register("mine")(lambda optim, schedule, rate=rate: optax.sgd(rate))
            record = train(tiny(optim={"name": "mine"}), tmp_path / str(rate))
            losses.append(record["losses"]["test"]["nats"])
    assert losses[0] - losses[1] > 0.1


def test_other_depths_are_in_the_record(unfinished: Path):
    """Every one is the evaluation that it says it is."""
    record = resume(unfinished, overrides={"train": {"eval_depths": "0.5,2,adaptive"}})
    found = record["evaluations"]
    assert [each["num_steps"] for each in found] == [2, 1, 4, None]
    assert [each["scheme"] for each in found] == [*["residual"] * 3, "adaptive"]
    assert {each["split"] for each in found} == {"validation"}
    trained = load_run(unfinished, step=record["losses"]["selected_step"])
    split, _ = load_split(trained, "validation")
    for each in found[:3]:
        model = trained.model.at_depth(each["num_steps"])
        assert each["nats"] == pytest.approx(evaluate(model, split).nats, rel=1e-6)
    assert found[0]["nats"] == pytest.approx(record["losses"]["validation"]["nats"], rel=1e-6)
    assert len({each["nats"] for each in found}) == 4
    assert json.loads((unfinished / "record.json").read_text())["evaluations"] == found


def test_an_existing_run_is_left_as_it_is(finished: Path, tiny: Callable[..., RunConfig]):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    with pytest.raises(UserError, match=r"holds a run already; continue it with 'qkvflow resume"):
        train(tiny(), finished)
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_two_processes_do_not_share_a_run(finished: Path):
    (finished / "record.json").rename(finished / "kept.json")
    try:
        with locked(finished), pytest.raises(UserError, match="another process is working"):
            resume(finished)
    finally:
        (finished / "kept.json").rename(finished / "record.json")


@pytest.mark.parametrize("limit", [300, 2500])
def test_a_disk_that_fails_loses_nothing(
    limit: int, tiny: Callable[..., RunConfig], tmp_path: Path
):
    """No file can grow beyond a limit: not the configuration, or not the first checkpoint."""
    out = tmp_path / "run"
    config = tiny(train={"steps": 60, "log_every": 1})
    reader, writer = pipe()
    process = start("train", out, config.to_dict(), largest_file=limit, said=writer)
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
