"""Killed at any moment and resumed, a run ends as if it had never been interrupted."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from processes import fake_sample, kill_when, start

from qkvflow.errors import UserError
from qkvflow.runs.checkpoint import Checkpoints
from qkvflow.runs.config import RunConfig, make_config
from qkvflow.runs.load import load_run
from qkvflow.runs.rundir import read_lines
from qkvflow.training import Diverged, resume, train

STEPS = 240


def config_of(tiny: Callable[..., RunConfig]) -> RunConfig:
    return tiny(
        train={"steps": STEPS, "eval_every": 30, "log_every": 7, "steps_per_dispatch": 6},
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
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def whole(tiny: Callable[..., RunConfig], cache: Path, tmp_path_factory: Any) -> dict[str, Any]:
    """The run that is never interrupted, in a process of its own like the others."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    process = start("train", directory, cache, config_of(tiny).to_dict())
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


def finish(directory: Path, cache: Path) -> None:
    process = start("resume", directory, cache)
    process.join()
    assert process.exitcode == 0


def test_killed_again_and_again(
    tiny: Callable[..., RunConfig], cache: Path, tmp_path: Path, whole: dict[str, Any]
):
    """Before the first step, at random steps, in the middle of saves, and near the end."""
    directory = tmp_path / "run"
    process = start("train", directory, cache, config_of(tiny).to_dict())
    assert kill_when(process, lambda: (directory / "config.yaml").exists())
    steps = sorted(np.random.default_rng(7).integers(1, STEPS - 20, 2).tolist())
    moments: list[Callable[[], bool]] = [
        lambda: last_step(directory) >= steps[0],
        lambda: last_step(directory) > steps[0] + 9 and is_saving(directory),
        lambda: last_step(directory) >= max(steps[1], steps[0] + 30),
        lambda: last_step(directory) > steps[1] + 40 and is_saving(directory),
        lambda: last_step(directory) >= STEPS,
    ]
    killed = sum(kill_when(start("resume", directory, cache), moment) for moment in moments)
    assert killed >= 3
    finish(directory, cache)
    assert_same(outcome(directory), whole)


def test_a_torn_line_is_cut_off(
    tiny: Callable[..., RunConfig], cache: Path, tmp_path: Path, whole: dict[str, Any]
):
    directory = tmp_path / "run"
    process = start("train", directory, cache, config_of(tiny).to_dict())
    assert kill_when(process, lambda: last_step(directory) > 50)
    with (directory / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 57, "lo')
    (directory / ".record.json.1.tmp").write_text('{"schema": 1, "stat')
    finish(directory, cache)
    assert_same(outcome(directory), whole)


def test_sigterm_saves_and_leaves(
    tiny: Callable[..., RunConfig], cache: Path, tmp_path: Path, whole: dict[str, Any]
):
    directory = tmp_path / "run"
    process = start("train", directory, cache, config_of(tiny).to_dict())
    kill_when(process, lambda: last_step(directory) > 20, signal.SIGTERM)
    assert process.exitcode == 143
    assert not (directory / "record.json").exists()
    saved = Checkpoints(directory, read_only=True).steps()
    # It saved where it stood, between the regular checkpoints too.
    assert saved[-1] >= last_step(directory)
    finish(directory, cache)
    assert_same(outcome(directory), whole)


@pytest.fixture(scope="module")
def short(tiny: Callable[..., RunConfig], tmp_path_factory: Any) -> tuple[RunConfig, Path]:
    """A finished run of 40 steps, to copy."""
    config, directory = tiny(), tmp_path_factory.mktemp("short") / "run"
    train(config, directory, sample=fake_sample)
    return config, directory


@pytest.fixture
def unfinished(short: tuple[RunConfig, Path], tmp_path: Path) -> Path:
    """The same run as if it had been killed after step 30."""
    import shutil

    directory = tmp_path / "run"
    shutil.copytree(short[1], directory)
    (directory / "record.json").unlink()
    shutil.rmtree(directory / "checkpoints" / "40")
    return directory


def test_resuming_reproduces_the_end(short: tuple[RunConfig, Path], unfinished: Path):
    wanted = json.loads((short[1] / "record.json").read_text())
    assert resume(unfinished, sample=fake_sample)["losses"] == wanted["losses"]


def test_a_finished_run_is_left_alone(short: tuple[RunConfig, Path]):
    before = (short[1] / "record.json").read_text()
    assert resume(short[1]) == json.loads(before)
    assert (short[1] / "record.json").read_text() == before


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
    changes = {"train": {"steps": 44, "eval_every": 11}, "checkpoint": {"every": 11}}
    record = resume(unfinished, overrides=changes, extend=True)
    assert record["budget"]["steps"] == 44
    assert last_step(unfinished) == 44


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


def test_an_edited_configuration_and_a_checkpoint_of_another_model(unfinished: Path):
    path = unfinished / "config.yaml"
    path.write_text(path.read_text().replace("d_model: 16", "d_model: 32"))
    with pytest.raises(UserError, match=r"model.d_model was 16.*cannot become 32"):
        resume(unfinished)
    with pytest.raises(UserError, match="is of another model"):
        load_run(unfinished)


def test_a_damaged_checkpoint_is_named(unfinished: Path):
    for path in (unfinished / "checkpoints" / "30").rglob("*"):
        if path.is_file() and path.stat().st_size > 0:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=r"delete .*30 to go on from the one before") as caught:
        resume(unfinished)
    assert "\n" not in str(caught.value)


def test_the_best_and_the_last_are_kept(short: tuple[RunConfig, Path], tmp_path: Path):
    config = make_config(
        short[0].to_dict(),
        # The learning rate explodes after the first evaluation, so that it stays the best.
        {"train": {"steps": 30, "eval_every": 5}, "optim": {"warmup": 3000, "lr": 300.0}},
        {"checkpoint": {"every": 6, "keep": 1}, "optim": {"clip": 0.0}},
    )
    record = train(config, tmp_path / "run")
    lines = [x for x in read_lines(tmp_path / "run" / "metrics.jsonl") if x["kind"] == "validation"]
    best = min(lines, key=lambda line: line["loss"])["step"]
    assert record["losses"]["selected_step"] == best
    kept = Checkpoints(tmp_path / "run", read_only=True).steps()
    assert kept == sorted({best, 30})
    assert load_run(tmp_path / "run").step == best
    assert load_run(tmp_path / "run", step="last").step == 30


def test_a_loss_that_stays_not_finite_stops_the_run(short: tuple[RunConfig, Path], tmp_path: Path):
    config = make_config(
        short[0].to_dict(),
        {"optim": {"lr": 1e30, "clip": 0.0, "warmup": 0}, "train": {"max_skipped": 5}},
    )
    with pytest.raises(Diverged, match=r"not finite 5 times in a row.*lower optim.lr"):
        train(config, tmp_path / "run")
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["status"] == "failed"
    assert "not finite" in record["error"]
    assert record["skipped_updates"] >= 5
