"""The configuration: layers, types, misspellings, YAML there and back."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from qkvflow.errors import UserError
from qkvflow.runs.config import make_config
from qkvflow.runs.config_files import load_config, parse_overrides, write_yaml
from qkvflow.runs.sections import SECTIONS
from qkvflow.zoo import ModelConfig
from qkvflow.zoo.options import described


def test_resolved_configuration_feeds_back_identically(tmp_path: Path):
    config = make_config(
        {"model": {"name": "tong", "d_model": 64, "horizon": 2}, "train": {"tokens": 10_000}}
    )
    path = tmp_path / "config.yaml"
    path.write_text(write_yaml(config))
    assert load_config(path) == config
    assert write_yaml(load_config(path)) == write_yaml(config)


def test_later_layers_win_and_yaml_numbers_are_numbers(tmp_path: Path):
    path = tmp_path / "run.yaml"
    path.write_text("optim: {lr: 1e-3}\ntrain: {steps: 1e3}\nmodel: {d_model: 64}\n")
    options = [("optim.lr", "3e-4"), ("model.num_steps", "12"), ("model.bias", "false")]
    config = load_config(path, parse_overrides(options))
    assert config.optim.lr == 3e-4
    assert config.train.steps == 1000
    model = config.model.config
    assert (model.d_model, model.num_steps, model.bias) == (64, 12, False)
    words = [("track.label", "007"), ("data.dir", "1_000"), ("track.group", "none")]
    config = load_config(None, parse_overrides(words))
    assert (config.track.label, config.data.dir, config.track.group) == ("007", "1_000", None)
    nothing = parse_overrides([("data.dir", ""), ("train.eval_depths", "null")])
    assert (load_config(None, nothing).data.dir, nothing["train"]["eval_depths"]) == (None, None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([("optim.learning_rat", "1")], "unknown optim option 'learning_rat'"),
        ([("optim.wieght_decay", "1")], "did you mean weight_decay"),
        ([("model.d_modell", "64")], "did you mean d_model"),
        ([("trian.steps", "64")], "did you mean train"),
        ([("model.name", "standrad")], "did you mean standard"),
        ([("model.size", "huge")], "unknown size 'huge'"),
        ([("optim.schedule", "cosin")], "did you mean cosine"),
        ([("optim.name", "adam")], "did you mean adamw"),
        ([("track.name", "tensorbord")], "did you mean tensorboard"),
        ([("train.steps", "0")], "train.steps must be positive, not 0"),
        ([("train.steps", "ten")], "train.steps must be a whole number, not 'ten'"),
        ([("train.steps", "1.5")], "train.steps must be a whole number, not 1.5"),
        ([("optim.lr", "nan")], "optim.lr must be a number, not 'nan'"),
        ([("optim.lr", ".nan")], "optim.lr must be a finite number"),
        ([("optim.lr", "yes")], "optim.lr must be a number, not True"),
        ([("optim.beta2", "1")], "optim.beta2 must be in [0, 1)"),
        ([("train.grad_accum", "3")], "not divisible by train.grad_accum 3"),
        ([("train.seed", "-1")], "train.seed must not be negative"),
        ([("train.seed", "3000000000")], "train.seed must be below 2^31"),
        ([("train.steps", "4294967296")], "train.steps must be below 2^31"),
        ([("train.tokens", "1e15")], "train.steps must be below 2^31"),
        ([("optim.lr", "1e300")], "optim.lr must be a rate that float32 can hold, not 1e+300"),
        ([("optim.warmup", "2147483648")], "optim.warmup must be below 2^31"),
        ([("model.d_model", "30"), ("model.num_heads", "4")], "not divisible by num_heads"),
        ([("model.num_steps", "0")], "num_steps must be positive"),
        ([("model.d_model", "1000000000")], "make matrices too wide"),
        ([("checkpoint.best", "maybe")], "checkpoint.best must be true or false"),
        ([("steps", "4")], "names no section"),
    ],
)
def test_mistakes_are_one_line(options: list[tuple[str, str]], said: str):
    with pytest.raises(UserError) as caught:
        load_config(None, parse_overrides(options))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("- 1\n", "top level must be sections"),
        ("train: 5\n", "train must be a section"),
        ("train: {steps: [1, 2]}\n", "train.steps must be a whole number"),
        ("a: b: c\n", "is not YAML"),
        ("x: !!python/object/apply:os.system ['true']\n", "is not YAML"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, content: str, said: str):
    path = tmp_path / "run.yaml"
    path.write_text(content)
    with pytest.raises(UserError, match=said):
        load_config(path)
    with pytest.raises(UserError, match="no configuration"):
        load_config(tmp_path / "absent.yaml")


def test_a_budget_in_tokens_becomes_steps_and_a_later_budget_replaces_it():
    tokens = {"model": {"context": 64}, "train": {"batch_size": 10, "tokens": 6401}}
    config = make_config(tokens)
    assert config.train.steps == 11
    assert make_config(config.to_dict()) == config
    assert make_config(config.to_dict(), {"train": {"steps": 7}}).train.steps == 7
    assert make_config({"train": {"steps": 7}}, tokens).train.steps == 11


def test_another_model_on_top_of_a_saved_configuration_is_that_model():
    saved = make_config({"model": {"name": "standard", "d_model": 64}}).to_dict()
    other = make_config(saved, {"model": {"name": "tong"}})
    assert other.model.config.field == "hypernet"
    assert other.model.config.d_model == 64
    larger = make_config(saved, {"model": {"size": "medium"}})
    assert (larger.model.config.d_model, larger.model.config.num_steps) == (64, 12)


@pytest.mark.parametrize("kind", [ModelConfig, *SECTIONS.values()])
def test_every_field_is_documented(kind: type):
    for field in dataclasses.fields(kind):
        assert len(field.metadata["help"]) > 5, field.name
        assert described(field).endswith(")")


def test_names_in_help_are_those_of_the_registry():
    field = {each.name: each for each in dataclasses.fields(SECTIONS["track"])}["name"]
    assert described(field) == (
        "Where else metrics go, besides metrics.jsonl: none, tensorboard, trackio, wandb "
        "(default none)"
    )


def test_saved_yaml_is_plain():
    assert yaml.safe_load(write_yaml(make_config()))["optim"]["lr"] == 1e-3


def test_old_names_are_read():
    old = {
        "optim": {"clip": 0.5, "final_lr": 0.2, "decay_share": 0.3},
        "train": {"only": "gates"},
        "model": {"gate_squash": "sigmoid", "num_waves": 7},
    }
    new = {
        "optim": {"max_grad_norm": 0.5, "min_lr_ratio": 0.2, "decay_fraction": 0.3},
        "train": {"trainable": "gates"},
        "model": {"gate_activation": "sigmoid", "num_frequencies": 7},
    }
    assert make_config(old) == make_config(new) != make_config()
    # Whichever name a later layer has, it is the same option.
    assert make_config(new, {"optim": {"clip": 2.0}}).optim.max_grad_norm == 2.0
    assert make_config(old, {"model": {"num_frequencies": 9}}).model.config.num_frequencies == 9
    assert not set(old["optim"]) & set(make_config(old).to_dict()["optim"])
