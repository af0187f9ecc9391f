"""The search before a comparison: seeds of its own, and models for which it finds nothing."""

from pathlib import Path

import numpy as np
import pytest
from comparisons import content, read_json, small_plan, workers

from qkvflow.experiment.comparison import run_plan
from qkvflow.records import collect, read_record
from qkvflow.report import build_report, markdown, numbers

pytestmark = pytest.mark.usefixtures("forked")


def test_learning_rates_are_tuned_on_their_own_seeds(tmp_path: Path, text: Path):
    tune = {"search": {"optim.lr": "1e-06,0.03"}, "seeds": [71, 72]}
    plan = small_plan(text, tune=tune, seeds=1, budget={"steps": 8})
    run_plan(plan, tmp_path / "out", executor=workers(1))
    found = read_json(tmp_path / "out" / "tuning.json")
    assert (found["search"], found["seeds"]) == (tune["search"], tune["seeds"])
    mine = found["models"]["standard"]
    assert mine["chosen"] == 3e-2
    for trial, rate in zip(mine["trials"], (1e-6, 3e-2), strict=True):
        place = tmp_path / "out" / "tuning" / "standard" / "trials" / f"{trial['number']:04}"
        records = [read_record(place / f"seed-{seed}" / "record.json") for seed in tune["seeds"]]
        assert {each.content["training"]["optim"]["lr"] for each in records} == {rate}
        assert all(each.loss("test", "nats") is None for each in records)
        losses = [each.loss("validation", "nats") for each in records]
        assert trial["loss"] == pytest.approx(np.mean([loss for loss in losses if loss]))
    record = read_record(tmp_path / "out" / "runs" / "standard" / "seed-0" / "record.json")
    assert record.content["training"]["optim"]["lr"] == 3e-2
    assert len(collect(tmp_path / "out").finished) == 1
    rates = build_report([tmp_path / "out"]).report.model("standard").rates
    assert (rates.used, list(rates.tried), rates.edge) == (3e-2, [1e-6, 3e-2], "highest")


def test_a_model_of_which_no_trial_ends_is_trained_as_configured(tmp_path: Path, text: Path):
    tune = {"search": {"optim.lr": "1e30"}, "seeds": [71]}
    train = {**content(text)["train"], "max_skipped": 2}
    plan = small_plan(text, tune=tune, seeds=1, budget={"steps": 8}, train=train)
    assert run_plan(plan, tmp_path / "out", executor=workers(1)).finished == 1
    found = read_json(tmp_path / "out" / "tuning.json")["models"]["standard"]
    assert (found["best"], found["values"], found["chosen"]) == (None, {}, plan.optim.lr)
    assert "not finite" in found["trials"][0]["error"]
    rates = build_report([tmp_path / "out"]).report.model("standard").rates
    assert rates.tried == {1e30: None}
    table = markdown.tuning([read_json(tmp_path / "out" / "tuning.json")])
    assert table.splitlines()[-1].split() == ["|", "standard", "|", numbers.ABSENT, "|"]
