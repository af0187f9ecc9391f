"""Searches: the best is found, trials are pruned, and a killed one goes on as if it had not been.

The objective is closed-form: an executor of the tests writes the losses that runs would have had.
One search trains for real, is killed, and goes on.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from comparisons import environment
from optuna.storages.journal import JournalFileBackend

from qkvflow.cli import main
from qkvflow.errors import UserError
from qkvflow.experiment import tuning
from qkvflow.experiment.executors.base import AbstractExecutor, Board
from qkvflow.experiment.search import Search, make_search, parse_spaces
from qkvflow.experiment.tuning import run_search
from qkvflow.experiment.units import Queue, Unit
from qkvflow.files import to_json, write_json
from qkvflow.report.charts.description import Plot
from qkvflow.report.tuning import build_tuning, figures
from qkvflow.runs.config import make_config
from qkvflow.runs.config_files import load_config, read_yaml
from qkvflow.runs.record import failed_record
from qkvflow.runs.rundir import METRICS, RECORD, asked_to_stop, read_run_config
from results.collect import collect

STEPS, BEST = 40, 10**-2.5
WIDTHS = {16: 0.3, 32: 0.0, 64: 0.2}


def objective(config: dict[str, Any], step: int) -> float:
    """Lowest, 1, at a rate of 10^-2.5 and a width of 32; worse rates are worse at every step."""
    far = math.log10(config["optim"]["lr"] / BEST) ** 2 + WIDTHS[config["model"]["d_model"]]
    return 1.0 + far + math.exp(-step / 10)


class Killed(BaseException):
    """Stands for a signal that nothing can catch."""


class ClosedForm(AbstractExecutor):
    """Writes what runs would write, one evaluation of each worker at a time."""

    def __init__(self, workers: int = 1, killed_after: float = math.inf) -> None:
        self._workers, self._left = workers, killed_after

    def run(self, queue: Queue, *, logs: Path, display: Any, caught: list[int]) -> None:
        board, at = Board(queue, display), {}
        while queue.left or board.running:
            for name in map(str, range(self._workers)):
                if name not in board.running and (unit := board.take()) is not None:
                    board.running[name], at[name] = unit, 0
            board.show()
            for name, unit in list(board.running.items()):
                at[name] += 1
                if over := self._advance(unit, at[name]):
                    board.answer(name, over)
                self._left -= 1
                if self._left < 0:
                    raise Killed

    def _advance(self, unit: Unit, evaluation: int) -> dict[str, Any] | None:
        directory = unit.file.parent
        config = read_run_config(directory)
        if config["optim"]["lr"] > 0.5:
            write_json(directory / RECORD, failed_record(make_config(config), "diverged"))
            return {"done": True}
        if asked_to_stop(directory):
            return {"stopped": int(signal.SIGTERM)}
        step = min(STEPS, evaluation * config["train"]["eval_every"])
        path = directory / METRICS
        # As a run that goes on from a checkpoint does: the same lines again.
        lines = path.read_text().splitlines()[: evaluation - 1] if path.exists() else []
        loss = objective(config, step)
        lines.append(to_json({"kind": "validation", "step": step, "loss": loss}))
        path.write_text("\n".join(lines) + "\n")
        if step < STEPS:
            return None
        record = failed_record(make_config(config), "")
        empty: Any = {key: {} for key in ("params", "flops", "data", "budget", "speed")}
        finished = {"status": "finished", "error": None, "losses": {"validation": {"nats": loss}}}
        write_json(directory / RECORD, {**record, **empty, **finished})
        return {"done": True}


def content(text: Path, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "model": {"d_model": 16, "num_steps": 1, "num_heads": 2, "context": 16},
        "data": {"spec": f"file:{text}?split=0.8,0.1,0.1", "tokenizer": "char"},
        "train": {"steps": STEPS, "batch_size": 4},
    }
    return {**base, **changes}


SPACES = ("optim.lr=log:1e-4:1e-1", "model.d_model=16,32,64")


def search(trials: int = 30, **more: Any) -> Search:
    return make_search(SPACES, trials=trials, **more)


@pytest.fixture(scope="module", autouse=True)
def counted_once() -> Any:
    """Shapes of a configuration are counted once for all tests: they are the slow part."""
    known: dict[Any, Any] = {}
    real = tuning.entry_of

    def entry_of(label: str, config: Any, vocab_size: int) -> Any:
        from dataclasses import replace

        shape = config.model.config.d_model
        if shape not in known:
            known[shape] = real(label, config, vocab_size)
        return replace(known[shape], config=config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "entry_of", entry_of)
        yield


@pytest.fixture(scope="module")
def whole(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("search") / "out"
    run_search(content(text), search(), out, executor=ClosedForm())
    return out


def result(out: Path) -> dict[str, Any]:
    return json.loads((out / "tuning.json").read_text())


def test_the_best_is_found(whole: Path):
    found = result(whole)
    assert len(found["trials"]) == 30
    assert found["values"]["model.d_model"] == 32
    assert abs(math.log10(found["values"]["optim.lr"] / BEST)) < 0.15
    least = min(each["loss"] for each in found["trials"] if each["loss"] is not None)
    best = next(each for each in found["trials"] if each["number"] == found["best"])
    assert best["loss"] == least < 1.1
    assert sum(found["importances"].values()) == pytest.approx(1.0)


def test_a_pruned_trial_is_a_run_stopped_at_a_step(whole: Path):
    found = result(whole)
    pruned = [each for each in found["trials"] if each["state"] == "pruned"]
    assert pruned
    for each in pruned:
        assert each["loss"] is None
        assert 10 / 3 <= len(each["curve"]) < 10
        run = whole / "trials" / f"{each['number']:04}" / "seed-1000001"
        assert asked_to_stop(run)
        assert not (run / RECORD).exists()
        # Worse at that point than half of those that came before and came to their end.
        step = len(each["curve"]) - 1
        before = sorted(
            other["curve"][step]
            for other in found["trials"]
            if other["number"] < each["number"] and other["state"] == "complete"
        )
        assert each["curve"][step] > before[(len(before) - 1) // 2]
    every = run_search(
        content_of(whole), search(6, prune=False), whole.parent / "all", executor=ClosedForm()
    )
    assert {each["state"] for each in every["trials"]} == {"complete"}


def content_of(out: Path) -> dict[str, Any]:
    kept = read_yaml(out / "study.yaml")["config"]
    return {**kept, "train": {k: v for k, v in kept["train"].items() if k != "seed"}}


@pytest.mark.parametrize("after", [3, 97])
def test_killed_it_goes_on_to_the_same_results(text: Path, tmp_path: Path, whole: Path, after: int):
    out = tmp_path / "out"
    with pytest.raises(Killed):
        run_search(content(text), search(), out, executor=ClosedForm(killed_after=after))
    with (out / "study.log").open("ab") as journal:
        journal.write(b'{"op_code":5,"worker')  # Half a line, as a killed process leaves.
    run_search(content(text), search(), out, executor=ClosedForm())
    assert result(out) == result(whole)


def altered(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_an_altered_result_is_not_believed(text: Path, tmp_path: Path):
    out = tmp_path / "out"
    asked = content(text), search(6), out
    run_search(*asked, executor=ClosedForm())
    before = result(out)
    loss = before["trials"][0]["loss"]
    altered(out / "tuning.json", f'"loss": {loss}', f'"loss": {loss / 2}')
    for read in (build_tuning, lambda out: collect(out, "x", tmp_path / "results")):
        with pytest.raises(UserError, match=r"tuning\.json was altered since it was written"):
            read(out)
    assert not (out / "tuning.html").exists()
    run_search(*asked, executor=ClosedForm())
    assert result(out) == before


def test_optuna_reads_the_journal_and_a_journal_without_hashes_is_read(
    text: Path, tmp_path: Path, whole: Path
):
    journal = JournalFileBackend(str(whole / "study.log"))
    study = optuna.load_study(study_name=None, storage=optuna.storages.JournalStorage(journal))
    found = result(whole)
    assert study.best_value == found["trials"][found["best"]]["loss"]
    out = Path(shutil.copytree(whole, tmp_path / "out"))
    lines = [json.loads(line) for line in (out / "study.log").read_text().splitlines()]
    assert all(line.pop("sha256") for line in lines)
    (out / "study.log").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (out / "tuning.json").unlink()
    run_search(content(text), search(), out, executor=ClosedForm())
    assert result(out) == found


def test_an_altered_journal_is_not_believed(text: Path, tmp_path: Path, whole: Path):
    out = tmp_path / "out"
    run_search(content(text), search(), out, executor=ClosedForm())
    altered(out / "study.log", '"values":[1.', '"values":[0.')
    with pytest.raises(UserError, match=r"study\.log was altered in line \d+ .*; delete it and"):
        run_search(content(text), search(), out, executor=ClosedForm())
    (out / "study.log").unlink()
    run_search(content(text), search(), out, executor=ClosedForm())
    assert result(out) == result(whole)


def test_two_workers_and_two_seeds(text: Path, tmp_path: Path):
    found = run_search(
        content(text), search(8, seeds=2), tmp_path / "out", executor=ClosedForm(workers=2)
    )
    assert len(found["trials"]) == 8
    seeds = {path.name for path in (tmp_path / "out" / "trials" / "0000").glob("seed-*")}
    assert seeds == {"seed-1000001", "seed-1000002"}


def test_choices_are_all_tried_once_and_failures_are_left_behind(text: Path, tmp_path: Path):
    spaces = ("optim.lr=1e-3,3e-3,1.0", "model.d_model=32,33")  # 33 is no width of two heads.
    out = tmp_path / "out"
    found = run_search(content(text), make_search(spaces), out, executor=ClosedForm())
    states = {tuple(each["values"].values()): each["state"] for each in found["trials"]}
    assert states == {
        (1e-3, 32): "complete",
        (3e-3, 32): "complete",
        (1.0, 32): "failed",
        **{(lr, 33): "failed" for lr in (1e-3, 3e-3, 1.0)},
    }
    assert found["values"] == {"optim.lr": 3e-3, "model.d_model": 32}
    with pytest.raises(UserError, match="no trial came to its end"):
        run_search(
            content(text),
            make_search(["optim.lr=1.0,2.0"]),
            tmp_path / "none",
            executor=ClosedForm(),
        )


def test_more_trials_go_on_and_another_search_is_refused(text: Path, tmp_path: Path):
    out = tmp_path / "out"
    first = run_search(content(text), search(4), out, executor=ClosedForm())
    more = run_search(content(text), search(7), out, executor=ClosedForm())
    assert more["trials"][:4] == first["trials"]
    assert len(more["trials"]) == 7
    with pytest.raises(UserError, match="another search: prune was True, now False"):
        run_search(content(text), search(7, prune=False), out, executor=ClosedForm())
    with pytest.raises(UserError, match="not for a search"):
        run_search(content(text, train={"seed": 1}), search(7), out, executor=ClosedForm())


def test_the_configuration_that_is_found(whole: Path, text: Path):
    config = load_config(whole / "best.yaml")
    values = result(whole)["values"]
    assert (config.optim.lr, config.model.config.d_model) == tuple(values.values())
    assert (config.train.steps, config.train.seed) == (STEPS, 0)
    assert make_config(content(text)).model.config.num_steps == config.model.config.num_steps


def test_the_page(whole: Path):
    page = build_tuning(whole).read_text()
    assert "pruned" in page
    drawn = {each.name: each for each in figures(result(whole))}
    assert list(drawn) == ["history", "importances", "slices"]
    assert [panel.title for panel in drawn["slices"].panels] == ["optim.lr", "model.d_model"]
    panel = drawn["history"].panels[0]
    assert isinstance(panel, Plot)
    best = [each for each in panel.series[0].y if each is not None]
    assert best == sorted(best, reverse=True)
    assert best


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("lr", "not a search space"),
        ("optim.lr=log:0:1", "from above 0"),
        ("optim.name=log:1:2", "give it choices"),
        ("optim.lr=log:1e-3:x", "must be a number"),
        ("model.d_modle=1,2", "did you mean d_model"),
        ("train.seed=1,2", "unknown train option"),
        ("optim.name=adam,muon", "did you mean adamw"),
    ],
)
def test_bad_spaces_are_one_line(text: str, part: str):
    with pytest.raises(UserError, match=part):
        parse_spaces([text])


def test_values_that_need_others_are_left_to_the_trials():
    for text in ("train.shortcut=0.1,1.0", "train.backprop_steps=2,8", "train.grad_accum=1,3"):
        assert len(parse_spaces([text])[0].values) == 2


def test_a_real_search_is_killed_and_goes_on(text: Path, tmp_path: Path):
    out, config = tmp_path / "out", tmp_path / "config.yaml"
    small = content(text, checkpoint={"every": 10}, optim={"warmup": 2})
    small["train"] |= {"log_every": 2, "steps_per_dispatch": 2}
    config.write_text(yaml.safe_dump(small))
    command = ["tune", "--config", str(config), "--search", "optim.lr=1e-5,1e-2", "--workers", "1"]
    command += ["--evaluations", "4", "--quiet", "--no-report", "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "qkvflow", *command], env=environment(), start_new_session=True
    )
    second = out / "trials" / "0001" / "seed-1000001" / METRICS
    deadline = time.monotonic() + 300
    while not second.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    first = (out / "trials" / "0000" / "seed-1000001" / RECORD).read_text()
    assert not (out / "best.yaml").exists()
    assert main(command) == 0
    found = result(out)
    assert [each["state"] for each in found["trials"]] == ["complete", "complete"]
    assert found["values"] == {"optim.lr": 1e-2}
    assert (out / "trials" / "0000" / "seed-1000001" / RECORD).read_text() == first
    assert len(found["trials"][1]["curve"]) == 4
