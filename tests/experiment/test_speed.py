"""Speed measured on its own: processes apart, rounds in turn."""

import json
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
    told: list[str] = []
    both = configs(text, "standard", "wide=standard:d_model=128")
    found = measure_speed(both, vocab_size=20, rounds=3, told=told.append)
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
    assert "speed: round 3 of 3" in told


class FakeBench:
    """Takes its turn and writes it down."""

    turns: list[str]

    def __init__(self, config: Any, vocab_size: int, plugins: Any) -> None:
        self.width = config.model.config.d_model
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


def test_rounds_are_interleaved_and_failures_listed(text: Path, monkeypatch: pytest.MonkeyPatch):
    FakeBench.turns = []
    monkeypatch.setattr(speed, "Remote", FakeBench)
    three = configs(text, "standard", "small=standard:d_model=8", "wide=standard:d_model=32")
    found = measure_speed(three, vocab_size=20, rounds=2)
    assert FakeBench.turns == ["16", "32", "32", "16", "closed", "closed"]
    assert found["failed"] == {"small": "does not fit"}
    assert found["models"]["wide"]["ms_per_step"]["median"] == 32.0
