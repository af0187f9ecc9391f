"""Widths that match parameters or compute, checked on built models."""

from pathlib import Path
from typing import Any

import jax
import pytest
from comparisons import small_plan

from qkvflow.errors import UserError
from qkvflow.experiment.matching import TOLERANCE, match, measure
from qkvflow.experiment.plan import make_plan
from qkvflow.experiment.presets import DEFAULT_MODELS, preset
from qkvflow.experiment.resolve import shapes
from qkvflow.lm import build_config
from qkvflow.zoo import ModelConfig, configure, entry

SIZES: dict[str, Any] = {"vocab_size": 50, "tokens_per_step": 512}
SMALL = {"d_model": 64, "num_heads": 4, "num_steps": 4, "context": 32}


def config_of(name: str, **changes: object) -> ModelConfig:
    return configure(entry(name), {**SMALL, **changes})


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("shared", "params"),
        ("tong", "params"),
        ("time-indexed-ssm", "params"),
        ("standard-llama", "params"),
        ("mamba", "flops"),
        ("time-indexed-ssm", "flops"),
    ],
)
def test_within_two_per_cent(name: str, kind: str):
    target = measure(config_of("standard"), kind, **SIZES)
    found = match(config_of(name), kind, target, **SIZES)
    assert abs(measure(found, kind, **SIZES) / target - 1) <= TOLERANCE
    assert found.d_model % found.num_heads == 0
    changed = {
        key for key, value in found.to_dict().items() if value != config_of(name).to_dict()[key]
    }
    assert changed <= {"d_model", "mlp_ratio", "d_state"}


def test_counted_parameters_are_those_of_the_built_model():
    target = measure(config_of("standard"), "params", **SIZES)
    found = match(config_of("shared"), "params", target, **SIZES)
    built = build_config(found, vocab_size=50, key=jax.random.key(0))
    stored = sum(leaf.size for leaf in jax.tree.leaves(built.field))
    assert abs(stored / target - 1) <= TOLERANCE


def test_a_model_that_fits_already_is_left_alone():
    config = config_of("standard")
    target = 1.01 * measure(config, "params", **SIZES)
    assert match(config, "params", target, **SIZES) is config


def test_without_an_mlp_the_states_are_tuned():
    config = config_of("time-indexed-ssm", num_heads=32)
    target = 1.1 * measure(config, "params", **SIZES)
    found = match(config, "params", target, **SIZES)
    assert abs(measure(found, "params", **SIZES) / target - 1) <= TOLERANCE
    assert found.d_state != config.d_state


@pytest.mark.parametrize("train", [{"depth_jitter": "2,4"}, {"backprop_steps": 2}])
def test_compute_is_that_of_the_step_that_is_trained(tmp_path: Path, train: dict[str, Any]):
    """Of random depths every model runs the same, however many are its own, and of truncated
    gradients it is the steps beyond that cost less."""
    models = ["short=shared:num_steps=2", "long=shared:num_steps=8"]
    changes = {"models": models, "model": {**SMALL, "num_steps": 4}, "match": "flops"}
    entries = shapes(small_plan(tmp_path, **changes, train={"batch_size": 4, **train}), 20)
    target, found = (each.flops_per_step for each in entries)
    assert abs(found / target - 1) <= TOLERANCE
    same = entries[0].config.model.config.d_model == entries[1].config.model.config.d_model
    assert same == ("depth_jitter" in train)


@pytest.mark.parametrize("target", [3.0, 1e13])
def test_the_impossible_is_refused(target: float):
    with pytest.raises(UserError, match=r"shared cannot be matched to .* block parameters"):
        match(config_of("shared"), "params", target, label="shared", **SIZES)


def test_standard_narrow_has_the_parameters_of_the_shared_model():
    plan = make_plan({**preset("quick"), "models": list(DEFAULT_MODELS), "questions": []})
    entries = {entry.label: entry for entry in shapes(plan, 256)}
    narrow, shared = entries["standard-narrow"], entries["time-indexed-mlp"]
    assert abs(narrow.block_parameters / shared.block_parameters - 1) <= TOLERANCE
    assert narrow.config.model.config.d_model < shared.config.model.config.d_model
    assert narrow.describe()["matched"] == "params of time-indexed-mlp"


@pytest.mark.parametrize("kind", ["params", "flops"])
def test_a_whole_plan_is_matched_to_its_reference(tmp_path: Path, kind: str):
    models = ["shared", "standard", "time-indexed-ssm"]
    plan = small_plan(
        tmp_path, models=models, match=kind, reference="standard", model={**SMALL, "d_time": 8}
    )
    entries = {entry.label: entry for entry in shapes(plan, 50)}
    counts = {
        label: each.block_parameters if kind == "params" else each.flops_per_token
        for label, each in entries.items()
    }
    for label in models:
        assert abs(counts[label] / counts["standard"] - 1) <= TOLERANCE
    assert entries["standard"].config.model.config.d_model == 64
    assert entries["standard"].matched is None


def test_models_matched_to_each_other_are_refused(tmp_path: Path):
    models = ["a=standard:params_of=b", "b=standard:params_of=a"]
    with pytest.raises(UserError, match="matched to each other"):
        shapes(small_plan(tmp_path, models=models), 50)
