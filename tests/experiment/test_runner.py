"""Running a plan: paired seeds in one program, failures, tuning, depths, and being killed."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from comparisons import content, environment, lines_of, read_json, small_plan

from qkvflow.errors import UserError
from qkvflow.experiment import runner as runner_module
from qkvflow.experiment.ensemble import Ensemble
from qkvflow.experiment.resolve import shapes, with_steps
from qkvflow.experiment.runner import Stopped, run_plan
from qkvflow.experiment.snapshot import read_host
from qkvflow.experiment.watch import Plain, Silent
from qkvflow.records import collect, read_record
from qkvflow.report import build_report
from qkvflow.runs.config_files import load_config
from qkvflow.training import train

ALMOST: dict[str, Any] = {"rtol": 2e-4, "atol": 2e-4}


def assert_same_lines(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> None:
    assert [line["kind"] for line in a] == [line["kind"] for line in b]
    for one, other in zip(a, b, strict=True):
        for key in one.keys() - {"kind"}:
            np.testing.assert_allclose(one[key], other[key], **ALMOST, err_msg=key)


@pytest.fixture(scope="module")
def two_models(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished comparison of two models on two seeds, with samples and other depths."""
    out = tmp_path_factory.mktemp("compare") / "out"
    plan = small_plan(text, models=["standard", "time-indexed-mlp"], samples="last", depths=["2"])
    outcome = run_plan(plan, out)
    assert (outcome.finished, outcome.failed) == (4, ())
    return out


def test_a_seed_agrees_with_the_same_seed_trained_alone(two_models: Path, tmp_path: Path):
    together = two_models / "runs" / "standard" / "seed-1"
    alone = tmp_path / "alone"
    record = train(load_config(together / "config.yaml"), alone)
    assert_same_lines(lines_of(together), lines_of(alone))
    mine = read_record(together / "record.json").content
    for split in ("validation", "test"):
        for key in ("nats", "standard_error", "bits_per_byte"):
            np.testing.assert_allclose(
                mine["losses"][split][key], record["losses"][split][key], **ALMOST
            )
    assert mine["losses"]["selected_step"] == record["losses"]["selected_step"]
    np.testing.assert_allclose(mine["losses"]["train"], record["losses"]["train"], **ALMOST)
    # The same record otherwise, but for what differs by its nature.
    apart = {"label", "losses", "speed", "memory", "budget", "started", "finished", "evaluations"}
    for key in record.keys() - apart - {"hardware"}:
        assert mine[key] == record[key], key
    # A run alone knows its mesh besides; a comparison spreads runs over devices, not a run.
    assert mine["hardware"].items() <= record["hardware"].items()
    assert mine["budget"]["steps"] == record["budget"]["steps"]
    assert mine["budget"]["flops"] == record["budget"]["flops"]


def test_seeds_are_paired_and_differ(two_models: Path):
    plan_seeds = yaml.safe_load((two_models / "plan.yaml").read_text())["seeds"]
    assert plan_seeds == [0, 1]
    losses = [
        [lines_of(two_models / "runs" / label / f"seed-{seed}")[0]["loss"] for seed in plan_seeds]
        for label in ("standard", "time-indexed-mlp")
    ]
    assert losses[0][0] != losses[0][1]
    records = collect(two_models)
    shas = {record.content["data"]["sha256"] for record in records.finished}
    assert len(shas) == 1


def test_the_files_of_a_comparison(two_models: Path):
    plan = yaml.safe_load((two_models / "plan.yaml").read_text())
    assert plan["resolved"]["models"]["standard"]["shape"]["d_model"] == 16
    assert plan["resolved"]["models"]["standard"]["steps"] == 12
    ngrams = read_json(two_models / "baselines.json")["ngrams"]
    assert {(e["order"], e["smoothing"]) for e in ngrams} == {
        (order, kind) for order in range(1, 6) for kind in ("add-k", "witten-bell")
    }
    assert not (two_models / "state").exists()
    run = two_models / "runs" / "time-indexed-mlp" / "seed-0"
    assert (run / "samples.txt").read_text().startswith("--- step ")
    kinds = [line["kind"] for line in lines_of(run)]
    assert kinds.count("validation") == 3
    record = read_record(run / "record.json").content
    assert record["speed"]["seeds_per_program"] == 2
    best = min(line["loss"] for line in lines_of(run) if line["kind"] == "validation")
    np.testing.assert_allclose(record["losses"]["validation"]["nats"], best, rtol=1e-6)


def test_other_depths_are_evaluated_on_validation(two_models: Path):
    record = read_record(two_models / "runs" / "standard" / "seed-0" / "record.json").content
    found = record["evaluations"]
    assert [each["num_steps"] for each in found] == [2, 4]
    # At its own depth, on the same windows, it is the selected validation loss.
    np.testing.assert_allclose(found[0]["nats"], record["losses"]["validation"]["nats"], **ALMOST)
    assert found[1]["nats"] != found[0]["nats"]


def test_a_solver_that_runs_out_of_steps_has_no_loss(tmp_path: Path, text: Path):
    models = [
        f"{word}=time-indexed-mlp:tolerance={x}" for word, x in (("loose", 0.1), ("tight", 1e-14))
    ]
    plan = small_plan(text, models=models, seeds=1, budget={"steps": 2}, depths=["adaptive"])
    run_plan(plan, tmp_path / "out")
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


def test_nothing_that_finished_is_repeated(two_models: Path, text: Path):
    paths = sorted(two_models.glob("runs/*/*/record.json"))
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths]
    plan = small_plan(text, models=["standard", "time-indexed-mlp"], samples="last", depths=["2"])
    begin = time.process_time()
    run_plan(plan, two_models)
    assert time.process_time() - begin < 5
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths] == before


def test_another_plan_in_the_same_place_is_refused(two_models: Path, text: Path):
    with pytest.raises(
        UserError, match=r"holds another comparison: .*seeds was \[0, 1\], now \[0\]"
    ):
        run_plan(small_plan(text, models=["standard", "time-indexed-mlp"], seeds=1), two_models)


def test_a_directory_with_something_else_is_refused(tmp_path: Path, text: Path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        run_plan(small_plan(text), tmp_path)


def test_failures_are_recorded_and_the_rest_goes_on(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
):
    compiled = Ensemble.compile

    def compile_or_not(self: Ensemble, *args: Any) -> None:
        if self.config.model.config.d_model == 8:
            raise MemoryError("no memory for this one")
        compiled(self, *args)

    monkeypatch.setattr(Ensemble, "compile", compile_or_not)
    models = ["small=standard:d_model=8", "broken=standard:init_std=1e30", "standard"]
    said = tmp_path / "said"
    with said.open("w") as file:
        outcome = run_plan(
            small_plan(text, models=models, train={"batch_size": 4, "max_skipped": 3}),
            tmp_path / "out",
            watch=Plain(file),
        )
    assert outcome.finished == 2
    records = collect(tmp_path / "out")
    assert {record.label for record in records.finished} == {"standard"}
    reasons = {record.label: record.error or "" for record in records.failed}
    assert "MemoryError: no memory for this one" in reasons["small"]
    assert "not finite" in reasons["broken"]
    assert "broken seed 0 FAILED" in said.read_text()
    # Failed is final until asked otherwise.
    monkeypatch.setattr(Ensemble, "compile", compiled)
    plan = small_plan(text, models=models, train={"batch_size": 4, "max_skipped": 3})
    assert run_plan(plan, tmp_path / "out").finished == 2
    assert run_plan(plan, tmp_path / "out", retry_failed=True).finished == 4


def test_learning_rates_are_tuned_on_their_own_seeds(tmp_path: Path, text: Path):
    tune = {"grid": [1e-6, 3e-2], "seeds": [71, 72]}
    plan = small_plan(text, tune=tune, seeds=1, budget={"steps": 8})
    run_plan(plan, tmp_path / "out")
    found = read_json(tmp_path / "out" / "tuning.json")
    assert (found["grid"], found["seeds"]) == (tune["grid"], tune["seeds"])
    mine = found["models"]["standard"]
    assert {(t["lr"], t["seed"]) for t in mine["trials"]} == {
        (lr, seed) for lr in tune["grid"] for seed in tune["seeds"]
    }
    assert mine["chosen"] == 3e-2
    record = read_record(tmp_path / "out" / "runs" / "standard" / "seed-0" / "record.json")
    assert record.content["training"]["optim"]["lr"] == 3e-2
    assert len(collect(tmp_path / "out").finished) == 1
    rates = build_report([tmp_path / "out"]).report.model("standard").rates
    assert (rates.used, list(rates.tried), rates.edge) == (3e-2, tune["grid"], "highest")


class Interrupting(Silent):
    """Sends a signal to its own process after a few steps, as Ctrl-C would."""

    def __init__(self, after: int) -> None:
        self.calls, self.after = 0, after

    def advance(self, work: float, text: str) -> None:
        self.calls += 1
        if self.calls == self.after:
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_saves_and_the_same_plan_goes_on(two_models: Path, tmp_path: Path, text: Path):
    plan = small_plan(text, models=["standard"], checkpoint={"every": 1000})
    with pytest.raises(Stopped) as stopped:
        run_plan(plan, tmp_path / "out", watch=Interrupting(4))
    assert stopped.value.signum == signal.SIGINT
    # Three program calls of two steps, after the call that says where it begins.
    saved = read_host(tmp_path / "out" / "state" / "standard.safetensors")
    assert saved is not None
    assert saved["step"] == 6
    assert run_plan(plan, tmp_path / "out").finished == 2
    for seed in plan.seeds:
        run = Path("runs") / "standard" / f"seed-{seed}"
        assert_same_lines(lines_of(tmp_path / "out" / run), lines_of(two_models / run))


def test_seconds_are_turned_into_steps(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch):
    def measured(configs: Any, **_: Any) -> dict[str, Any]:
        times = {"median": 250.0, "q1": 250.0, "q3": 250.0, "all": [250.0]}
        return {"models": {label: {"ms_per_step": times} for label in configs}, "failed": {}}

    monkeypatch.setattr(runner_module, "measure_speed", measured)
    plan = small_plan(text, seeds=1, budget={"seconds": 3})
    assert run_plan(plan, tmp_path / "out").finished == 1
    (record,) = collect(tmp_path / "out").finished
    assert record.content["budget"]["steps"] == 12
    assert run_plan(plan, tmp_path / "out").finished == 1


def test_programs_are_cut_to_the_memory(text: Path, monkeypatch: pytest.MonkeyPatch):
    plan = small_plan(text, seeds=5)
    encoded = runner_module.load_data(plan.base_config(plan.models[0]))
    (entry,) = with_steps(plan, shapes(plan, encoded.tokenizer.vocab_size))
    ensemble = Ensemble(entry.config, encoded)
    sizes: list[int] = []

    def fake(count: int) -> None:
        sizes.append(count)
        ensemble.size, ensemble.program_bytes = count, 100 * count

    monkeypatch.setattr(ensemble, "_compile", fake)
    monkeypatch.setattr(ensemble, "_everywhere", None, raising=False)
    monkeypatch.setattr("qkvflow.experiment.ensemble.available_bytes", lambda: 500)
    ensemble.compile(5)
    assert sizes == [5, 3], "300 of 500 bytes hold three runs: two groups, of three and two"
    ensemble.compile(5, 2)
    assert sizes[2:] == [2]


def command(plan: Path, out: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "qkvflow", "compare", "--config", str(plan)),
        *("--out", str(out), "--seeds-per-program", "2", "--no-report"),
    ]


def test_killed_and_continued(tmp_path: Path, text: Path):
    """A real process, killed while the second of two models trains; two devices, one program."""
    models = ["standard", "shared"]
    changes: dict[str, Any] = {"models": models, "seeds": 3, "budget": {"steps": 40}}
    plan = small_plan(text, **changes)
    whole = tmp_path / "whole"
    run_plan(plan, whole)
    file, out = tmp_path / "plan.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(content(text, **changes)))
    two = environment(XLA_FLAGS="--xla_force_host_platform_device_count=2")
    process = subprocess.Popen(command(file, out), env=two, stdout=subprocess.DEVNULL)
    snapshot = out / "state" / "shared.safetensors"
    deadline = time.monotonic() + 400
    while not snapshot.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = sorted(out.glob("runs/standard/*/record.json"))
    assert len(done) == 3
    assert not list(out.glob("runs/shared/*/record.json"))
    before = [path.read_bytes() for path in done]
    reached = max(line["step"] for line in lines_of(out / "runs" / "shared" / "seed-0"))
    ended = subprocess.run(command(file, out), env=two, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    assert [path.read_bytes() for path in done] == before
    assert "shared (2 of 2): step 4" in ended.stdout or reached >= 4
    for label in models:
        for seed in plan.seeds:
            run = Path("runs") / label / f"seed-{seed}"
            assert_same_lines(lines_of(out / run), lines_of(whole / run))
            mine, other = (read_record(d / run / "record.json") for d in (out, whole))
            one, another = (each.loss("test", "nats") or 0.0 for each in (mine, other))
            np.testing.assert_allclose(one, another, **ALMOST)
    changed = dataclasses.replace(plan, seeds=(0, 1))
    with pytest.raises(UserError, match="seeds was"):
        run_plan(changed, out)
