"""The order of units, how many workers there are, and what each is given."""

import dataclasses
import json
from pathlib import Path

import pytest
from comparisons import small_plan

from qkvflow import limits
from qkvflow.errors import OutOfMemory
from qkvflow.experiment.executors import local
from qkvflow.experiment.executors.local import suggest_workers, worker_environment
from qkvflow.experiment.resolve import shapes, with_steps
from qkvflow.experiment.units import Queue, Unit, in_order, program_of


def unit(tmp_path: Path, program: str, seed: int, work: float) -> Unit:
    directory = tmp_path / f"{program}-{seed}"
    directory.mkdir()
    title = f"{program}{seed}"
    return Unit(title, {"kind": "run"}, directory / "record.json", work, program, steps=10)


@pytest.fixture
def units(tmp_path: Path) -> list[Unit]:
    sizes = {"a": 1.0, "b": 3.0}
    return [unit(tmp_path, name, seed, sizes[name]) for name in "ab" for seed in range(2)]


def test_one_of_every_program_first_and_the_longest_before_the_others(units: list[Unit]):
    assert [each.title for each in in_order(units)] == ["b0", "a0", "b1", "a1"]


def test_no_program_is_compiled_by_two_at_once(units: list[Unit]):
    queue = Queue(units)
    first, second = queue.take([]), None
    assert first is not None
    second = queue.take([first])
    assert second is not None
    assert (first.title, second.title) == ("b0", "a0")
    assert queue.take([first, second]) is None, "both programs are being compiled"
    line = json.dumps({"kind": "train", "step": 1, "loss": 2.0})
    first.metrics.write_text(line + "\n")
    third = queue.take([first, second])
    assert third is not None
    assert third.title == "b1"
    # Compiled once, it is in the cache whoever runs.
    assert (fourth := queue.take([second])) is None or fourth.program == "b"


def test_units_that_are_done_are_left_out(units: list[Unit]):
    units[0].file.write_text('{"status": "failed", "schema": 1}')
    assert units[0] not in Queue(units).waiting
    units[0].file.write_text('{"status": "fai')  # Damaged: not done.
    assert units[0] in Queue(units).waiting


def test_a_unit_is_begun_three_times_at_most(units: list[Unit]):
    queue = Queue(units[:1])
    for attempt in range(3):
        taken = queue.take([])
        assert taken is not None
        assert taken is units[0]
        assert queue.put_back(taken) == (attempt < 2)


def test_runs_that_share_a_program(text: Path, tmp_path: Path):
    plan = small_plan(text, models=["standard", "shared"])
    one, other = with_steps(plan, shapes(plan, 20))
    optim = dataclasses.replace(one.config.optim, lr=3e-3)
    faster = dataclasses.replace(one, config=dataclasses.replace(one.config, optim=optim))
    entries = {"one": (one, 0), "faster": (faster, 1), "other": (other, 0)}
    program = {
        name: entry.run(seed, tmp_path / name, "", group="").program
        for name, (entry, seed) in entries.items()
    }
    assert program["one"] == program["faster"] == program_of(one.config)
    assert program["one"] != program["other"]


def test_budgets_count_what_is_run(text: Path):
    """Consistency runs the model at N and 2N steps: about three times the work of N alone."""

    def flops(**train: object) -> float:
        (entry,) = shapes(small_plan(text, train={"batch_size": 4, **train}), 20)
        return entry.flops_per_step

    plain, consistent, drawn = flops(), flops(consistency=0.5), flops(depth_jitter="2,4")
    assert 2.3 < consistent / plain <= 3.0
    assert 1.2 < drawn / plain <= 1.5
    budget = {"flops": 10 * consistent}
    plan = small_plan(text, train={"batch_size": 4, "consistency": 0.5}, budget=budget)
    (entry,) = with_steps(plan, shapes(plan, 20))
    assert entry.steps == 10


def test_workers_by_cores_and_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local, "cpu_limit", lambda: 8)
    monkeypatch.setattr(local, "available_memory", lambda: 10 << 30)
    assert suggest_workers(0, 1 << 20) == 8
    assert suggest_workers(0, 2 << 30) == 4
    assert suggest_workers(0, 100 << 30) == 1
    assert suggest_workers(3, 1 << 20) == 3


def test_more_workers_than_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local, "memory_limit", lambda: 5 << 30)
    local._check_workers(5, 1 << 30)
    with pytest.raises(OutOfMemory, match=r"6 workers take about 6.4 GB .* --workers 5"):
        local._check_workers(6, 1 << 30)


def test_the_environment_of_a_worker(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local.os, "sched_getaffinity", lambda _: {4, 6})
    env, core = worker_environment(1, 2, 0)
    assert (env["PJRT_NPROC"], core) == ("1", 6)
    assert worker_environment(2, 3, 0)[1] is None, "more workers than cores are not held to one"
    env, core = worker_environment(5, 8, 4)
    assert (env["CUDA_VISIBLE_DEVICES"], core) == ("1", None)
    assert float(env["XLA_PYTHON_CLIENT_MEM_FRACTION"]) == pytest.approx(0.45)


@pytest.mark.parametrize("version", [1, 2])
def test_limits_of_a_container(tmp_path: Path, version: int):
    files = {
        2: {
            "cpu.max": "150000 100000",
            "memory.max": str(1 << 30),
            "memory.current": str(700 << 20),
            "memory.stat": f"anon 1\ninactive_file {200 << 20}\n",
        },
        1: {
            "cpu/cpu.cfs_quota_us": "150000",
            "cpu/cpu.cfs_period_us": "100000",
            "memory/memory.limit_in_bytes": str(1 << 30),
            "memory/memory.usage_in_bytes": str(700 << 20),
            "memory/memory.stat": f"total_inactive_file {200 << 20}\n",
        },
    }[version]
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    assert limits.cpu_limit(tmp_path) <= 2
    assert limits.memory_limit(tmp_path) == 1 << 30
    assert limits.available_memory(tmp_path) == (1 << 30) - (500 << 20)


def test_no_limits_where_there_is_no_container(tmp_path: Path):
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert limits.cpu_limit(tmp_path) >= 1
    free, most = limits.available_memory(tmp_path), limits.memory_limit(tmp_path)
    assert free is not None
    assert most is not None
    assert 0 < free <= most


def test_a_unit_says_how_far_it_is(units: list[Unit]):
    first = dataclasses.replace(units[0])
    assert first.progress() == (0, None)
    first.metrics.write_text('{"kind": "train", "step": 4, "loss": 1.5}\n{"kind": "tr')
    assert first.progress() == (4, 1.5)
