"""Speed measured on its own: processes apart, rounds in turn."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparisons import small_plan

from qkvflow.experiment import speed
from qkvflow.experiment.resolve import shapes, with_steps
from qkvflow.experiment.speed import measure_speed


def configs(text: Path, *models: str) -> dict[str, Any]:
    plan = small_plan(text, models=list(models))
    return {entry.label: entry.config for entry in with_steps(plan, shapes(plan, 20))}


def test_real_processes(text: Path):
    both = configs(text, "standard", "wide=standard:d_model=128")
    found = measure_speed(both, vocab_size=20, rounds=3, cores=sorted(os.sched_getaffinity(0)))
    json.dumps(found)
    assert (found["rounds"], found["batch_size"], found["context"]) == (3, 4, 16)
    assert found["failed"] == {}
    for each in found["models"].values():
        times = each["ms_per_step"]
        assert len(times["all"]) == 3
        assert 0 < times["q1"] <= times["median"] <= times["q3"]
        np.testing.assert_allclose(each["tokens_per_second"] * times["median"], 64e3)
        assert each["compile_seconds"] > 0.05
        assert each["resident_bytes"] > each["program_bytes"] > 0
    small, wide = found["models"]["standard"], found["models"]["wide"]
    assert wide["program_bytes"] > 10 * small["program_bytes"]


class FakeBench:
    """Takes its turn and writes it down."""

    turns: list[str]

    def __init__(self, config: Any, vocab_size: int, core: int | None) -> None:
        self.width, self.core = config.model.config.d_model, core
        if self.width == 8:
            raise RuntimeError("does not\nfit")

    def round(self) -> dict[str, Any]:
        self.turns.append(str(self.width))
        return {"ms": float(self.width)}

    def describe(self) -> dict[str, Any]:
        return {"compile_seconds": 1.0, "program_bytes": 1}

    def resident(self) -> dict[str, Any]:
        return {"resident_bytes": 2}

    def close(self) -> None:
        self.turns.append("closed")


class Dying(FakeBench):
    """Its process ends in the second round."""

    def round(self) -> dict[str, Any]:
        if self.width == 32 and self.turns.count("32") == 1:
            raise RuntimeError("ended by SIGKILL")
        return FakeBench.round(self)


def test_one_dead_process_is_listed_and_the_others_go_on(
    text: Path, monkeypatch: pytest.MonkeyPatch
):
    FakeBench.turns = []
    monkeypatch.setattr(speed, "Remote", Dying)
    both = configs(text, "standard", "wide=standard:d_model=32")
    found = measure_speed(both, vocab_size=20, rounds=3)
    assert found["failed"] == {"wide": "ended by SIGKILL"}
    assert len(found["models"]["standard"]["ms_per_step"]["all"]) == 3
    assert "wide" not in found["models"]


def test_what_a_process_prints_fills_no_pipe(text: Path, monkeypatch: pytest.MonkeyPatch):
    """More than a pipe holds, before it ends with an error of its own."""
    (config,) = configs(text, "standard").values()
    noisy = "import sys; sys.stderr.write('x' * 300_000 + '\\n'); sys.exit('out of luck')"
    popen = speed.subprocess.Popen
    monkeypatch.setattr(
        speed.subprocess, "Popen", lambda words, **rest: popen([words[0], "-c", noisy], **rest)
    )
    found = measure_speed({"standard": config}, vocab_size=20, rounds=1)
    assert found["models"] == {}
    assert "exit code 1: out of luck" in found["failed"]["standard"]


def test_rounds_are_interleaved_and_failures_listed(text: Path, monkeypatch: pytest.MonkeyPatch):
    FakeBench.turns = []
    monkeypatch.setattr(speed, "Remote", FakeBench)
    three = configs(text, "standard", "small=standard:d_model=8", "wide=standard:d_model=32")
    found = measure_speed(three, vocab_size=20, rounds=2)
    assert FakeBench.turns == ["16", "32", "32", "16", "closed", "closed"]
    assert found["failed"] == {"small": "does not fit"}
    assert found["models"]["wide"]["ms_per_step"]["median"] == 32.0


def test_models_are_made_on_all_cores_at_a_time(text: Path, monkeypatch: pytest.MonkeyPatch):
    """Each begins before it waits for any other of its cores, and no more than there are cores."""
    said: list[tuple[str, int, int | None]] = []

    class Noted(FakeBench):
        def __init__(self, config: Any, vocab_size: int, core: int | None) -> None:
            FakeBench.__init__(self, config, vocab_size, core)
            said.append(("made", self.width, core))

        def describe(self) -> dict[str, Any]:
            said.append(("waited", self.width, self.core))
            return FakeBench.describe(self)

    monkeypatch.setattr(speed, "Remote", Noted)
    names = ("standard", "wide=standard:d_model=32", "wider=standard:d_model=64")
    FakeBench.turns = []
    measure_speed(configs(text, *names), vocab_size=20, rounds=1, cores=(5, 7))
    first = [("made", 16, 5), ("made", 32, 7), ("waited", 16, 5), ("waited", 32, 7)]
    assert said[:6] == [*first, ("made", 64, 5), ("waited", 64, 5)]
