"""Names, configurations and building: what can be asked for, and what is refused."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jaxtyping
import numpy as np
import pytest
from tiny_models import TINY, VOCAB, random_tokens

import qkvflow
from qkvflow.blocks import MLP, SwiGLU
from qkvflow.errors import UserError
from qkvflow.runs.sections import SECTIONS
from qkvflow.schemes import RK4, Parallel, Sequential
from qkvflow.zoo import MODELS, PUBLISHED, SIZES, ModelConfig, configure, entry

KEY = jax.random.key(0)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without the type checks of the tests, which would find some mistakes before the package."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


TABLE = {
    "standard": ("per-layer", "attention+mlp", "residual", "sequential"),
    "standard-llama": ("per-layer", "attention+swiglu", "residual", "sequential"),
    "shared": ("shared", "attention+mlp", "residual", "sequential"),
    "tong": ("hypernet", "attention+mlp", "euler", "parallel"),
    "tong-llama": ("hypernet", "attention+swiglu", "euler", "parallel"),
    "time-indexed-mlp": ("gated", "attention+mlp", "residual", "sequential"),
    "time-indexed-ssm": ("gated", "attention+ssm", "residual", "sequential"),
    "time-indexed-selective-ssm": ("gated", "attention+selective-ssm", "residual", "sequential"),
    "ode-ssm": ("hypernet", "attention+ssm", "euler", "parallel"),
    "hybrid": ("gated", "attention+mlp", "euler", "parallel"),
    "low-rank": ("low-rank", "attention+mlp", "residual", "sequential"),
    "basis": ("basis", "attention+mlp", "residual", "sequential"),
    "mamba": ("per-layer", "selective-ssm", "residual", "sequential"),
    "cycle": ("cycle", "attention+mlp", "residual", "sequential"),
    "huginn": ("cycle", "attention+swiglu", "residual", "sequential"),
    "ouro": ("cycle", "attention+swiglu", "residual", "sequential"),
    "universal": ("universal", "attention+mlp", "residual", "sequential"),
    "loopformer": ("modulated", "attention+mlp", "residual", "sequential"),
    "parcae": ("cycle", "attention+swiglu", "residual", "sequential"),
    "deq": ("shared", "attention+mlp", "fixed-point", "sequential"),
}


def test_names():
    assert qkvflow.names() == list(TABLE)
    for name, choices in TABLE.items():
        config = configure(entry(name), {})
        found = (config.field, config.block, config.scheme, config.composition)
        assert found == choices
    assert len(PUBLISHED) == 7


@pytest.mark.parametrize("size", SIZES)
def test_sizes(size: str):
    shape = {
        "tiny": (64, 4, 4, 128),
        "small": (256, 6, 4, 512),
        "medium": (512, 12, 8, 1024),
        "large": (1024, 24, 16, 2048),
    }
    for name in qkvflow.names():
        config = configure(entry(name, size), {})
        found = (config.d_model, config.num_steps, config.num_heads, config.context)
        d_model, steps, heads, context = shape[size]
        assert found == (d_model, MODELS[name].get("num_steps", steps), heads, context)


def test_any_option_can_be_overridden():
    model = qkvflow.build(
        "tong", vocab_size=VOCAB, key=KEY, **{**TINY, "scheme": "rk4", "tied": False}
    )
    assert isinstance(model.scheme, RK4)
    assert model.head is not None
    assert model.head.shape == (TINY["d_model"], VOCAB)
    assert (model.num_steps, model.context) == (TINY["num_steps"], TINY["context"])
    assert model(random_tokens(4)).shape == (4, VOCAB)


def test_scheme_and_horizon_follow_the_entry():
    standard, hybrid = (
        qkvflow.build(name, vocab_size=VOCAB, key=KEY, **TINY) for name in ("standard", "hybrid")
    )
    assert isinstance(standard.scheme, Sequential)
    assert isinstance(hybrid.scheme, Parallel)
    assert (standard.horizon, hybrid.horizon) == (3.0, 1.0)


def test_every_mixer_of_a_block_is_the_named_one():
    model = qkvflow.build("shared", vocab_size=VOCAB, key=KEY, **{**TINY, "block": "mlp+swiglu"})
    mixers = [type(branch.mixer) for branch in model.field.at(1.0).branches]
    assert mixers == [MLP, SwiGLU]


def test_register():
    qkvflow.register("of-my-own", field="shared", block="attention+swiglu")
    try:
        assert "of-my-own" in qkvflow.names()
        model = qkvflow.build("of-my-own", vocab_size=VOCAB, key=KEY, **TINY)
        assert np.isfinite(model(random_tokens(3))).all()
        with pytest.raises(UserError, match="there is a model 'of-my-own' already"):
            qkvflow.register("of-my-own")
    finally:
        MODELS.unregister("of-my-own")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("standrd", {}, "unknown model 'standrd'; did you mean standard"),
        ("xyzzy", {}, "unknown model 'xyzzy'; known: "),
        ("standard", {"size": "smal"}, "did you mean small"),
        ("standard", {"d_modle": 3}, "unknown model option 'd_modle'; did you mean d_model"),
        ("standard", {"vocab_size": 0}, "vocab_size must be positive"),
        ("standard", {"field": "per-layers"}, "did you mean per-layer"),
        ("standard", {"scheme": "rk5"}, "did you mean rk4"),
        ("standard", {"composition": "serial"}, "composition"),
        ("standard", {"block": "attention+mpl"}, "did you mean mlp"),
        ("standard", {"block": ""}, "mixer"),
        ("standard", {"norm": "layer-norm"}, "did you mean layernorm"),
        ("standard", {"final_norm": "times"}, "did you mean time"),
        ("standard", {"positions": "ropes"}, "did you mean rope"),
        ("standard", {"compute_dtype": "float16"}, "compute_dtype"),
        ("basis", {"basis": "cosines"}, "did you mean cosine"),
        ("tong", {"time_features": "sinus"}, "did you mean sinusoidal"),
        ("hybrid", {"gate": "inputs"}, "did you mean input"),
        ("hybrid", {"gate_activation": "sigmod"}, "did you mean sigmoid"),
        ("standard", {"d_model": 30}, "d_model 30 is not divisible by num_heads 4"),
        ("standard", {"num_kv_heads": 3}, "not divisible by num_kv_heads 3"),
        ("standard-llama", {"d_model": 12}, "even width per head, not 3"),
        ("standard-llama", {"head_dim": 3}, "even width per head, not 3"),
        ("standard-llama", {"rotary_fraction": 0.3}, "0.3 of it"),
        ("standard-llama", {"rotary_fraction": 1.5}, "rotary_fraction must be in"),
        ("standard-llama", {"rotary_scaling": "yarn:2"}, "rotary_scaling is none, linear"),
        ("standard-llama", {"rotary_scaling": "llama3:8:4:1:32"}, "LOW must be less"),
        ("standard", {"activation": "gelu_tan"}, "did you mean gelu_tanh"),
        ("mamba", {"ssm_head_dim": 7}, "ssm_head_dim 7 does not divide the inner width 32"),
        ("mamba", {"ssm_groups": 3}, "ssm_groups 3 does not divide the 4 heads"),
        ("standard", {"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
        ("standard", {"attention_dropout": -0.1}, "attention_dropout must be in"),
        ("standard", {"frozen_time": 1.5}, r"frozen_time must be in \[0, 1\]"),
        ("standard", {"d_model": "wide"}, "d_model must be int, not 'wide'"),
        ("standard", {"d_model": 16.0}, "d_model must be int, not 16.0"),
        ("standard", {"d_model": True}, "d_model must be int, not True"),
        ("standard", {"tied": 1}, "tied must be bool, not 1"),
        ("standard", {"field": None}, "field must be str, not None"),
        ("standard", {"mlp_ratio": float("nan")}, "mlp_ratio must be positive"),
        ("standard", {"mlp_ratio": float("inf")}, "mlp_ratio must be finite"),
        ("adaptive", {}, "unknown model"),
    ],
)
def test_impossible_values_are_one_line(name: str, options: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message) as caught:
        qkvflow.build(name, key=KEY, **{"vocab_size": VOCAB, **TINY, **options})
    assert "\n" not in str(caught.value)


POSITIVE = [
    field.name
    for field in dataclasses.fields(ModelConfig)
    if field.type in (int, float, int | None, float | None)
    and field.name not in ("dropout", "attention_dropout", "frozen_time", "prelude", "coda")
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", POSITIVE)
@pytest.mark.parametrize("value", [0, -1])
def test_sizes_are_positive(name: str, value: int):
    with pytest.raises(UserError, match=f"{name} must be positive, not {value}"):
        configure({}, {name: value})


def test_configurations_go_to_dictionaries_and_back():
    config = configure(entry("time-indexed-ssm"), {"d_model": 64})
    assert ModelConfig(**config.to_dict()) == config


@pytest.mark.parametrize("section", [ModelConfig, *SECTIONS.values()])
def test_every_option_is_documented(section: type):
    for field in dataclasses.fields(section):
        assert len(field.metadata["help"].split()) >= 2, field.name
