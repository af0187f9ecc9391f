"""Killed at any moment and resumed, a run ends as if it had never been interrupted."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml
from processes import kill_when, start

from qkvflow.errors import UserError
from qkvflow.runs.checkpoint import Checkpoints
from qkvflow.runs.config import RunConfig, make_config
from qkvflow.runs.config_files import write_yaml
from qkvflow.runs.load import load_run
from qkvflow.runs.resume_rules import check_config
from qkvflow.runs.rundir import read_lines
from qkvflow.training import Diverged, Interrupted, resume, train
from qkvflow.training.reporter import SilentReporter

STEPS = 240


def config_of(tiny: Callable[..., RunConfig]) -> RunConfig:
    return tiny(
        train={
            "steps": STEPS,
            "eval_every": 30,
            "log_every": 7,
            "steps_per_dispatch": 6,
            "samples": "evaluations",
        },
        model={"dropout": 0.1},
        checkpoint={"every": 8},
    )


def outcome(directory: Path) -> dict[str, Any]:
    """Everything of a run that must not depend on interruptions."""
    lines = read_lines(directory / "metrics.jsonl")
    record = json.loads((directory / "record.json").read_text())
    last = load_run(directory, step="last")
    assert last.step == STEPS
    return {
        "lines": [{k: v for k, v in line.items() if k != "seconds"} for line in lines],
        "losses": record["losses"],
        "steps": record["budget"]["steps"],
        "samples": (directory / "samples.txt").read_text(),
        "weights": [
            np.asarray(leaf) for leaf in jax.tree.leaves(last.model) if hasattr(leaf, "shape")
        ],
        "status": record["status"],
    }


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name in ("lines", "losses", "steps", "samples", "status"):
        assert one[name] == other[name], name
    for a, b in zip(one["weights"], other["weights"], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def whole(tiny: Callable[..., RunConfig], tmp_path_factory: Any) -> dict[str, Any]:
    """The run that is never interrupted, in a process of its own like the others."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    process = start("train", directory, config_of(tiny).to_dict())
    process.join()
    assert process.exitcode == 0
    return outcome(directory)


def last_step(directory: Path) -> int:
    return max((line["step"] for line in read_lines(directory / "metrics.jsonl")), default=0)


def is_saving(directory: Path) -> bool:
    """Whether a checkpoint is half written just now."""
    try:
        return any("tmp" in path.name for path in (directory / "checkpoints").iterdir())
    except OSError:
        return False


def test_stopped_again_and_again(
    tiny: Callable[..., RunConfig], tmp_path: Path, whole: dict[str, Any]
):
    """Killed before the first step, at any step, in the middle of a save and near the end; told to
    stop by two signals; and with what a torn write leaves."""
    directory = tmp_path / "run"
    process = start("train", directory, config_of(tiny).to_dict())
    assert kill_when(process, lambda: (directory / "config.yaml").exists())
    first = int(np.random.default_rng(7).integers(1, 60))
    moments: list[tuple[Callable[[], bool], int]] = [
        (lambda: last_step(directory) >= first, signal.SIGKILL),
        (lambda: last_step(directory) > first + 9 and is_saving(directory), signal.SIGKILL),
        (lambda: last_step(directory) > first + 40, signal.SIGTERM),
        (lambda: last_step(directory) > first + 80, signal.SIGHUP),
        (lambda: last_step(directory) >= STEPS, signal.SIGKILL),
    ]
    killed = 0
    for moment, signum in moments:
        process = start("resume", directory)
        stopped = kill_when(process, moment, signum)
        if signum == signal.SIGKILL:
            killed += stopped
        else:
            assert process.exitcode == 128 + signum
            assert not (directory / "record.json").exists()
            # It saved where it stood, between the regular checkpoints too.
            assert Checkpoints(directory, read_only=True).steps()[-1] >= last_step(directory)
        with (directory / "metrics.jsonl").open("a") as file:
            file.write('{"kind": "train", "step": 57, "lo')
        (directory / ".record.json.1.tmp").write_text('{"schema": 1, "stat')
    assert killed >= 2
    process = start("resume", directory)
    process.join()
    assert process.exitcode == 0
    assert_same(outcome(directory), whole)


class Stopping(SilentReporter):
    """Sends a signal to this process as soon as some steps are made."""

    def __init__(self, signum: int) -> None:
        self.signum = signum

    def progress(self, step: int, **_: Any) -> None:
        if step >= 3:
            os.kill(os.getpid(), self.signum)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_between_steps(signum: int, tiny: Callable[..., RunConfig], tmp_path: Path):
    handlers = signal.getsignal(signum)
    config = tiny(train={"steps_per_dispatch": 3})
    with pytest.raises(Interrupted, match=f"{signal.Signals(signum).name} at step 3") as caught:
        train(config, tmp_path / "run", reporter=Stopping(signum))
    assert caught.value.signum == signum
    assert Checkpoints(tmp_path / "run", read_only=True).steps() == [3]
    assert signal.getsignal(signum) == handlers


def test_resuming_reproduces_the_end(finished: Path, unfinished: Path):
    wanted = json.loads((finished / "record.json").read_text())
    assert resume(unfinished)["losses"] == wanted["losses"]


def test_a_directory_that_holds_a_configuration_alone_is_begun(
    finished: Path, tiny: Callable[..., RunConfig], tmp_path: Path
):
    (tmp_path / "config.yaml").write_text(write_yaml(tiny()))
    assert resume(tmp_path)["status"] == "finished"
    wanted, found = (read_lines(each / "metrics.jsonl") for each in (finished, tmp_path))
    for one, other in zip(wanted, found, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert (tmp_path / "tokenizer.json").exists()


def test_a_finished_run_is_left_alone(finished: Path):
    before = (finished / "record.json").read_text()
    assert resume(finished) == json.loads(before)
    assert (finished / "record.json").read_text() == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": {"d_model": 32}}, "model.d_model was 16"),
        ({"train": {"batch_size": 8}}, "train.batch_size was 4"),
        ({"train": {"seed": 3}}, "train.seed was 0"),
        ({"optim": {"lr": 0.1}}, "optim.lr was 0.003"),
        ({"data": {"tokenizer": "byte"}}, "data.tokenizer was char"),
        ({"train": {"steps": 50}}, "add --extend"),
        ({"train": {"steps": 20}}, "has made 30 steps already"),
    ],
)
def test_unsound_changes_are_refused(unfinished: Path, changes: dict[str, Any], said: str):
    before = (unfinished / "config.yaml").read_text()
    with pytest.raises(UserError) as caught:
        resume(unfinished, overrides=changes)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (unfinished / "config.yaml").read_text() == before
    assert Checkpoints(unfinished, read_only=True).steps() == [30]


def test_sound_changes_are_made(unfinished: Path):
    changes = {
        "train": {"steps": 44, "eval_every": 11},
        "checkpoint": {"every": 11},
        "model": {"remat": "block"},
    }
    record = resume(unfinished, overrides=changes, extend=True)
    assert record["budget"]["steps"] == 44
    assert last_step(unfinished) == 44


def test_a_run_can_end_where_it_is(unfinished: Path):
    record = resume(unfinished, overrides={"train": {"steps": 30}}, extend=True)
    assert (record["status"], record["budget"]["steps"]) == ("finished", 30)
    assert record["losses"]["test"]["nats"] > 0


def test_a_ramp_follows_the_number_of_steps():
    train = {"recurrence": "fixed+ramp:0.5", "steps": 40, "backprop_steps": 2}
    given = {"train": train, "optim": {"schedule": "constant"}}
    saved = make_config(given).to_dict()
    longer = make_config(given, {"train": {"steps": 400}})
    with pytest.raises(UserError, match="ramp of recurrence has been following that"):
        check_config(saved, longer, step=10, extend=False)
    assert "is stretched" in check_config(saved, longer, step=10, extend=True)[0]


def test_a_changed_corpus_is_refused_and_a_moved_one_is_not(
    unfinished: Path, text: Path, tmp_path: Path
):
    moved = tmp_path / "moved.txt"
    moved.write_bytes(text.read_bytes())
    spec = f"file:{moved}?split=0.8,0.1,0.1"
    changed = tmp_path / "changed.txt"
    changed.write_text(text.read_text().replace("depth", "width"))
    with pytest.raises(UserError, match="has changed since this run began"):
        resume(unfinished, overrides={"data": {"spec": spec.replace("moved", "changed")}})
    assert resume(unfinished, overrides={"data": {"spec": spec}})["status"] == "finished"


def test_old_names_in_a_saved_configuration_are_read(finished: Path, unfinished: Path):
    path = unfinished / "config.yaml"
    saved = yaml.safe_load(path.read_text())
    for section, old, new in OLD_NAMES:
        saved[section][old] = saved[section].pop(new)
    path.write_text(yaml.safe_dump(saved))
    assert load_run(unfinished).config == load_run(finished).config
    assert resume(unfinished)["status"] == "finished"
    assert yaml.safe_load(path.read_text())["optim"]["max_grad_norm"] == 1.0


OLD_NAMES = [
    ("optim", "clip", "max_grad_norm"),
    ("optim", "final_lr", "min_lr_ratio"),
    ("optim", "decay_share", "decay_fraction"),
    ("train", "only", "trainable"),
    ("model", "gate_squash", "gate_activation"),
    ("model", "num_waves", "num_frequencies"),
]


def test_an_edited_configuration_and_a_checkpoint_of_another_model(unfinished: Path):
    path = unfinished / "config.yaml"
    path.write_text(path.read_text().replace("d_model: 16", "d_model: 32"))
    with pytest.raises(UserError, match=r"model.d_model was 16.*cannot become 32"):
        resume(unfinished)
    with pytest.raises(UserError, match=r"model.d_model was 16.*cannot become 32"):
        load_run(unfinished)


def test_a_damaged_checkpoint_is_named(unfinished: Path):
    for path in (unfinished / "checkpoints" / "30").rglob("*"):
        if path.is_file() and path.stat().st_size > 0:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=r"delete .*30 to go on from the one before") as caught:
        resume(unfinished)
    assert "\n" not in str(caught.value)


def test_loading_reads_the_model_alone(finished: Path, unfinished: Path):
    """Whatever is wrong with the optimiser's state, the model is there; going on is refused."""
    for path in (unfinished / "checkpoints" / "30" / "training").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    damaged, whole = (load_run(each, step=30) for each in (unfinished, finished))
    np.testing.assert_array_equal(damaged.model.embedding, whole.model.embedding)
    with pytest.raises(UserError, match=r"step 30 .* cannot be read .*delete .*30 to go on"):
        resume(unfinished)


def test_the_best_and_the_last_are_kept(tiny: Callable[..., RunConfig], tmp_path: Path):
    config = make_config(
        tiny().to_dict(),
        # The learning rate explodes after the first evaluation, so that it stays the best.
        {"train": {"steps": 30, "eval_every": 5}, "optim": {"warmup": 3000, "lr": 300.0}},
        {"checkpoint": {"every": 6, "keep": 1}, "optim": {"max_grad_norm": 0.0}},
    )
    record = train(config, tmp_path / "run")
    lines = [x for x in read_lines(tmp_path / "run" / "metrics.jsonl") if x["kind"] == "validation"]
    best = min(lines, key=lambda line: line["loss"])["step"]
    assert record["losses"]["selected_step"] == best
    kept = Checkpoints(tmp_path / "run", read_only=True).steps()
    assert kept == sorted({best, 30})
    assert load_run(tmp_path / "run").step == best
    assert load_run(tmp_path / "run", step="last").step == 30


@pytest.mark.parametrize("kept", ["best", "none"])
def test_what_a_finished_run_keeps(kept: str, unfinished: Path):
    changes = {"checkpoint": {"finished": kept, "best": False}}
    record = resume(unfinished, overrides=changes)
    steps = Checkpoints(unfinished, read_only=True).steps()
    assert steps == ([record["losses"]["selected_step"]] if kept == "best" else [])
    assert resume(unfinished) == record
    if kept == "none":
        with pytest.raises(UserError, match="kept no checkpoint"):
            load_run(unfinished)
        # There is nothing to go on from, and beginning again was not what was asked.
        with pytest.raises(UserError, match="kept no checkpoint"):
            resume(unfinished, overrides={"train": {"steps": 50}}, extend=True)
        assert resume(unfinished) == record


def test_a_loss_that_stays_not_finite_stops_the_run(tiny: Callable[..., RunConfig], tmp_path: Path):
    config = make_config(
        tiny().to_dict(),
        {"optim": {"lr": 1e30, "max_grad_norm": 0.0, "warmup": 0}, "train": {"max_skipped": 5}},
    )
    with pytest.raises(Diverged, match=r"not finite 5 times in a row.*lower optim.lr"):
        train(config, tmp_path / "run")
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["status"] == "failed"
    assert "not finite" in record["error"]
    assert record["skipped_updates"] >= 5
