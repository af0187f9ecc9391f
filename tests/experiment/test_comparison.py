"""Running a plan: ordinary runs by worker processes, failures, kills, tuning, and going on."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from comparisons import (
    content,
    forked_workers,
    lines_of,
    read_json,
    small_plan,
    worker_pids,
    workers,
)

from qkvflow.cli import main
from qkvflow.errors import ResourceError, UserError
from qkvflow.experiment.comparison import run_plan
from qkvflow.experiment.display import LineDisplay, Row, SilentDisplay
from qkvflow.experiment.executors import Stopped
from qkvflow.experiment.resolve import describe, shapes, with_steps
from qkvflow.experiment.units import Unit
from qkvflow.records import collect, read_record
from qkvflow.report import build_report
from qkvflow.runs.config import make_config
from qkvflow.runs.config_files import read_yaml
from qkvflow.runs.corpus import load_data

BOTH = ("standard", "time-indexed-mlp")


def both_plan(text: Path, **changes: Any) -> Any:
    return small_plan(text, models=list(BOTH), **changes)


@pytest.fixture(scope="module")
def two_models(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished comparison of two models on two seeds by two workers, with samples."""
    out = tmp_path_factory.mktemp("compare") / "out"
    train = {**content(text)["train"], "samples": "last", "eval_depths": "2"}
    track = {"name": "tensorboard"}
    outcome = run_plan(both_plan(text, train=train, track=track), out, executor=workers(2))
    assert (outcome.finished, outcome.failed) == (4, ())
    return out


def runs_of(out: Path) -> list[Path]:
    return sorted(path.parent for path in out.glob("runs/*/seed-*/record.json"))


def assert_same_bits(out: Path, other: Path) -> None:
    """Every line of every run, and every final loss, to the last bit."""
    assert [run.relative_to(out) for run in runs_of(out)] == [
        run.relative_to(other) for run in runs_of(other)
    ]
    for one, another in zip(runs_of(out), runs_of(other), strict=True):
        assert lines_of(one) == lines_of(another)
        losses = [read_json(run / "record.json")["losses"] for run in (one, another)]
        assert losses[0] == losses[1]


def test_a_run_of_a_comparison_is_an_ordinary_run(two_models: Path, tmp_path: Path, text: Path):
    run = two_models / "runs" / "standard" / "seed-1"
    names = {path.name for path in run.iterdir()}
    assert names >= {"config.yaml", "record.json", "metrics.jsonl", "samples.txt", "checkpoints"}
    assert names >= {"tokenizer.json", "tensorboard"}, "trackers are told of every run"
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["track"]["label"] == "standard"
    assert config["track"]["group"] == "out"
    record = read_json(run / "record.json")
    assert record["label"] == "standard"
    assert record["seed"] == 1
    # The verbs work on it as on any other run.
    assert main(["resume", str(run), "--quiet"]) == 0
    assert main(["eval", str(run), "--split", "test"]) == 0
    assert main(["generate", str(run), "--tokens", "4"]) == 0
    assert main(["export", str(run), "--to", str(tmp_path / "exported")]) == 0
    more = ["finetune", str(run), "--data", f"file:{text}?split=0.8,0.1,0.1", "--steps", "2"]
    assert main([*more, "--out", str(tmp_path / "tuned"), "--quiet"]) == 0
    assert (tmp_path / "tuned" / "finetune.json").exists()


def test_eval_of_a_run_gives_the_loss_of_its_record(
    two_models: Path, capsys: pytest.CaptureFixture[str]
):
    run = two_models / "runs" / "time-indexed-mlp" / "seed-0"
    assert main(["eval", str(run), "--split", "test", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["results"]
    losses = read_json(run / "record.json")["losses"]
    assert found["nats"] == pytest.approx(losses["test"]["nats"], rel=1e-5)


def test_the_files_of_a_comparison(two_models: Path):
    plan = yaml.safe_load((two_models / "plan.yaml").read_text())
    assert plan["seeds"] == [0, 1]
    assert plan["resolved"]["models"]["standard"]["shape"]["d_model"] == 16
    assert plan["resolved"]["models"]["standard"]["steps"] == 12
    ngrams = read_json(two_models / "baselines.json")["ngrams"]
    assert {(e["order"], e["smoothing"]) for e in ngrams} == {
        (order, kind) for order in range(1, 6) for kind in ("add-k", "witten-bell")
    }
    # 12 steps of 4 windows of 16 characters, of a train split of many more.
    seen = read_json(two_models / "baselines.json")["seen"]
    assert seen["train_tokens"] == 12 * 4 * 16
    config = read_yaml(two_models / "runs" / "standard" / "seed-0" / "config.yaml")
    encoded = load_data(make_config(config))
    counted = np.bincount(encoded.train.tokens[:768], minlength=encoded.tokenizer.vocab_size)
    shares = (counted + 0.1) / (768 + 0.1 * len(counted))
    unigram = next(e for e in seen["ngrams"] if (e["order"], e["smoothing"]) == (1, "add-k"))
    assert unigram["test"] == pytest.approx(-np.log(shares[encoded.test.tokens]).mean())
    run = two_models / "runs" / "time-indexed-mlp" / "seed-0"
    assert (run / "samples.txt").read_text().startswith("--- step ")
    lines = lines_of(run)
    assert [line["kind"] for line in lines].count("validation") == 3
    record = read_record(run / "record.json").content
    best = min(line["loss"] for line in lines if line["kind"] == "validation")
    assert record["losses"]["validation"]["nats"] == pytest.approx(best, rel=1e-6)
    own, other = record["evaluations"]
    assert (own["num_steps"], other["num_steps"]) == (2, 4)
    assert own["nats"] == pytest.approx(best, rel=1e-5)
    # One checkpoint is kept, the selected one.
    kept = [path.name for path in (run / "checkpoints").iterdir() if path.name.isdecimal()]
    assert kept == [str(record["losses"]["selected_step"])]


def test_seeds_are_paired_and_differ(two_models: Path):
    records = collect(two_models)
    assert len({record.content["data"]["sha256"] for record in records.finished}) == 1
    first = {
        (record.label, record.seed): lines_of(record.run_dir)[0]["loss"]
        for record in records.finished
        if record.run_dir is not None
    }
    assert first["standard", 0] != first["standard", 1]


def test_nothing_that_finished_is_repeated(two_models: Path, text: Path):
    paths = sorted(two_models.glob("runs/*/*/record.json"))
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths]
    train = {**content(text)["train"], "samples": "last", "eval_depths": "2"}
    run_plan(both_plan(text, train=train), two_models, executor=workers(2))
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths] == before


def test_another_plan_in_the_same_place_is_refused(two_models: Path, text: Path):
    with pytest.raises(UserError, match=r"holds another comparison: .*seeds was \[0, 1\]"):
        run_plan(both_plan(text, seeds=1), two_models)


def test_a_comparison_whose_corpus_has_changed_is_refused(tmp_path: Path, text: Path):
    own = tmp_path / "own.txt"
    own.write_bytes(text.read_bytes())
    plan = small_plan(own)
    write_plan(tmp_path / "out", plan)
    own.write_bytes(text.read_bytes()[:-200] + b"depth is a flow")
    with pytest.raises(UserError, match="was begun with another corpus or version"):
        run_plan(plan, tmp_path / "out")


@pytest.mark.usefixtures("forked")
def test_damaged_files_of_a_comparison_are_made_again(
    two_models: Path, tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
):
    """And `compare` says which of those that cannot be were altered."""
    out = Path(shutil.copytree(two_models, tmp_path / "out"))
    [first, second, third, fourth] = runs_of(out)
    for path in (first / "record.json", out / "baselines.json"):
        path.write_text(path.read_text().replace("1", "2", 3))
    (second / "record.json").unlink()
    (second / "config.yaml").write_text("model: {")
    (third / "metrics.jsonl").write_text("")
    train = {**content(text)["train"], "samples": "last", "eval_depths": "2"}
    plan = both_plan(text, train=train, track={"name": "tensorboard"})
    outcome = run_plan(plan, out, executor=workers(2))
    assert (outcome.finished, outcome.failed) == (4, ())
    for run in (first, second, fourth):
        same = two_models / run.relative_to(out)
        assert lines_of(run) == lines_of(same)
        assert read_json(run / "record.json")["losses"] == read_json(same / "record.json")["losses"]
    assert read_json(out / "baselines.json") == read_json(two_models / "baselines.json")
    [note] = outcome.notes
    assert f"{third / 'metrics.jsonl'} was altered" in note


def test_a_directory_with_something_else_is_refused(tmp_path: Path, text: Path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        run_plan(small_plan(text), tmp_path)


class Watching(SilentDisplay):
    """Calls `act` once, when some run has come to a step."""

    def __init__(self, act: Callable[[], None], at: int) -> None:
        self.act, self.at, self.acted = act, at, False
        self.said: list[str] = []

    def update(self, rows: Sequence[Row]) -> None:
        if not self.acted and any(row.step >= self.at for row in rows):
            self.acted = True
            self.act()

    def note(self, text: str) -> None:
        self.said.append(text)


LONG: dict[str, Any] = {
    "seeds": 3,
    "budget": {"steps": 60},
    "checkpoint": {"every": 20},
    "evaluations": 2,
}


@pytest.fixture(scope="module")
def whole(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A longer comparison that nothing happened to, by one worker, of more runs than two have at a
    time."""
    out = tmp_path_factory.mktemp("whole") / "out"
    with forked_workers():
        assert run_plan(small_plan(text, **LONG), out, executor=workers(1)).finished == 3
    return out


def kill_a_worker() -> None:
    os.kill(worker_pids()[0], signal.SIGKILL)


@pytest.mark.usefixtures("forked")
def test_a_killed_worker_costs_nothing_but_time(whole: Path, tmp_path: Path, text: Path):
    """Two workers, one of which is killed, end with the bits of one worker left alone."""
    watching = Watching(kill_a_worker, at=30)
    outcome = run_plan(
        small_plan(text, **LONG), tmp_path / "out", executor=workers(2), display=watching
    )
    assert watching.acted
    assert outcome.finished == 3
    assert any("SIGKILL" in line and "checkpoint" in line for line in watching.said)
    assert_same_bits(tmp_path / "out", whole)


@pytest.mark.usefixtures("forked")
def test_ctrl_c_saves_and_the_same_plan_goes_on(whole: Path, tmp_path: Path, text: Path):
    plan = small_plan(text, **{**LONG, "checkpoint": {"every": 1000}})
    watching = Watching(lambda: os.kill(os.getpid(), signal.SIGINT), at=10)
    with pytest.raises(Stopped) as stopped:
        run_plan(plan, tmp_path / "out", executor=workers(2), display=watching)
    assert stopped.value.signum == signal.SIGINT
    assert not worker_pids()
    saved = list((tmp_path / "out").glob("runs/*/*/checkpoints/[0-9]*"))
    assert saved, "what was under way is in checkpoints, which were not due yet"
    assert run_plan(plan, tmp_path / "out", executor=workers(2)).finished == 3
    assert_same_bits(tmp_path / "out", whole)


def test_ctrl_c_while_workers_start(tmp_path: Path, text: Path):
    """They end without a word, and leave no process behind that nobody has waited for."""
    watching = Watching(lambda: os.kill(os.getpid(), signal.SIGINT), at=0)
    with pytest.raises(Stopped):
        run_plan(small_plan(text, **LONG), tmp_path / "out", executor=workers(2), display=watching)
    assert not worker_pids()
    gc.collect()  # A warning of a process that nobody has waited for fails the test.


def test_the_whole_command_killed_and_continued(whole: Path, tmp_path: Path, text: Path):
    """The workers notice that nobody is there any more, save, and leave the directory free."""
    file, out = tmp_path / "plan.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(content(text, **LONG)))
    words = ["compare", "--config", str(file), "--out", str(out), "--no-report", "--workers", "2"]
    line = [sys.executable, "-m", "qkvflow", *words]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline and process.poll() is None:
        if list(out.glob("runs/*/*/checkpoints/20")):
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = runs_of(out)
    before = [(run / "record.json").read_bytes() for run in done]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    assert [(run / "record.json").read_bytes() for run in done] == before
    assert_same_bits(out, whole)


CRASHING = """
import os, sys
from pathlib import Path
import qkvflow
from qkvflow.fields import AbstractField
from qkvflow.zoo.registry import FIELDS

class Crashing(AbstractField):
    block: object
    def at(self, t):
        if os.environ.get("CRASH") and Path(sys.argv[0]).stem == "worker":
            os._exit(7)
        return self.block
    def stack(self, ts):
        import jax, jax.numpy as jnp
        self.at(0.0)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (len(ts), *x.shape)), self.block)

@FIELDS.register("crashing")
def make(make_block, config, key):
    return Crashing(make_block(key))

qkvflow.register("crashing", field="crashing")
"""


@pytest.fixture
def crashing(tmp_path: Path) -> Path:
    path = tmp_path / "crashing.py"
    path.write_text(CRASHING)
    return path


@pytest.mark.usefixtures("forked")
def test_failures_are_recorded_and_the_rest_goes_on(
    tmp_path: Path, text: Path, crashing: Path, monkeypatch: pytest.MonkeyPatch
):
    """One model ends its process whenever it is trained, one diverges, one is sound."""
    from qkvflow.zoo.plugins import load_plugins
    from qkvflow.zoo.registry import FIELDS, MODELS

    load_plugins([str(crashing)])
    try:
        models = ["crashing", "broken=standard:init_std=1e30", "standard"]
        train = {**content(text)["train"], "max_skipped": 3}
        plan = small_plan(text, models=models, seeds=1, train=train)
        monkeypatch.setenv("CRASH", "1")
        said = tmp_path / "said"
        with said.open("w") as file:
            outcome = run_plan(
                plan,
                tmp_path / "out",
                executor=workers(2),
                display=LineDisplay(file),
            )
        assert outcome.finished == 1
        reasons = {r.label: r.error or "" for r in collect(tmp_path / "out").failed}
        assert "ended with code 7, three times" in reasons["crashing"]
        assert "not finite" in reasons["broken"]
        assert said.read_text().count("goes on from its checkpoint") == 2
        # Failed is final until asked otherwise.
        monkeypatch.delenv("CRASH")
        executor = workers(2)
        assert run_plan(plan, tmp_path / "out", executor=executor).finished == 1
        retried = run_plan(plan, tmp_path / "out", executor=executor, retry_failed=True)
        assert retried.finished == 2
    finally:
        FIELDS.unregister("crashing")
        MODELS.unregister("crashing")


def write_plan(out: Path, plan: Any) -> None:
    """A directory in which the comparison has begun."""
    encoded = load_data(plan.base_config(plan.models[0]))
    entries = shapes(plan, encoded.tokenizer.vocab_size)
    if plan.budget.kind != "seconds":
        entries = with_steps(plan, entries)
    resolved = describe(plan, entries, encoded)
    out.mkdir(exist_ok=True)
    (out / "plan.yaml").write_text(yaml.safe_dump({**plan.to_dict(), "resolved": resolved}))


@pytest.mark.usefixtures("forked")
def test_a_full_disk_is_no_result(tmp_path: Path, text: Path):
    """What is in the way and not in the request ends the command; with it gone, it goes on."""
    plan = small_plan(text, seeds=1)
    run = tmp_path / "out" / "runs" / "standard" / "seed-0"
    run.mkdir(parents=True)
    (run / "checkpoints").write_text("in the way")
    write_plan(tmp_path / "out", plan)
    with pytest.raises(ResourceError, match="cannot write"):
        run_plan(plan, tmp_path / "out", executor=workers(1))
    assert not (run / "record.json").exists()
    (run / "checkpoints").unlink()
    assert run_plan(plan, tmp_path / "out", executor=workers(1)).finished == 1


@pytest.mark.usefixtures("forked")
def test_a_solver_that_runs_out_of_steps_has_no_loss(tmp_path: Path, text: Path):
    models = [
        f"{word}=time-indexed-mlp:tolerance={x}" for word, x in (("loose", 0.1), ("tight", 1e-14))
    ]
    train = {**content(text)["train"], "eval_depths": "adaptive"}
    # The tight one makes all the steps it may for every batch of its validation split.
    data = {"spec": f"file:{text}?split=0.98,0.01,0.01", "tokenizer": "char"}
    plan = small_plan(text, models=models, seeds=1, budget={"steps": 2}, train=train, data=data)
    run_plan(plan, tmp_path / "out", executor=workers(2))
    for label, arrives in (("loose", True), ("tight", False)):
        record = read_record(tmp_path / "out" / "runs" / label / "seed-0" / "record.json")
        own, adaptive = record.content["evaluations"]
        assert own["nats"] is not None
        assert adaptive["num_steps"] is None
        assert (adaptive["nats"] is not None) == arrives
    missing = build_report([tmp_path / "out"]).report.missing
    said = [line for line in missing if "ran out of steps" in line]
    assert len(said) == 1
    assert "1 of 1 seeds of tight" in said[0]


@pytest.mark.usefixtures("forked")
def test_seconds_are_turned_into_steps(tmp_path: Path, text: Path):
    """The speed was measured before: 250 ms a step."""
    out = tmp_path / "out"
    plan = small_plan(text, seeds=1, budget={"seconds": 3})
    write_plan(out, plan)
    times = {"median": 250.0, "q1": 250.0, "q3": 250.0, "all": [250.0]}
    speed = {"models": {"standard": {"ms_per_step": times}}, "failed": {}}
    (out / "speed.json").write_text(json.dumps(speed))
    assert run_plan(plan, out, executor=workers(1)).finished == 1
    (record,) = collect(out).finished
    assert record.content["budget"]["steps"] == 12


def test_units_of_speed_fail_for_themselves(tmp_path: Path):
    from qkvflow.experiment.units import give_up

    job = {"kind": "speed", "configs": {"a": {}, "b": {}}}
    unit = Unit("speed", job, tmp_path / "speed.json", work=1.0, program="speed")
    give_up(unit, "its process was ended")
    assert unit.done
    assert read_json(unit.file)["failed"] == {
        "a": "its process was ended",
        "b": "its process was ended",
    }
