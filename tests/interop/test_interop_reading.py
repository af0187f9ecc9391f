"""Reading directories, names and settings: what is carried over, and what is refused."""

import json
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from hf_cases import CASES, GPT2, LLAMA, MAMBA2, MISTRAL, NEOX, QWEN2, QWEN3, VOCAB, read_golden
from safetensors.numpy import save_file

from qkvflow.errors import UserError
from qkvflow.interop import config_from_huggingface, from_huggingface, to_huggingface
from qkvflow.lm import LanguageModel, build_config
from qkvflow.zoo import ModelConfig


def write(directory: Path, settings: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    (directory / "config.json").write_text(json.dumps(settings))
    save_file(tensors, directory / "model.safetensors")


def assert_equal(a: LanguageModel, b: LanguageModel) -> None:
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(left, right)


def test_directory_equals_tensors(tmp_path: Path):
    settings, tensors, *_ = read_golden("gpt2")
    write(tmp_path, settings, tensors)
    assert_equal(from_huggingface(tmp_path), from_huggingface(settings, tensors))
    assert_equal(from_huggingface(str(tmp_path)), from_huggingface(settings, tensors))
    assert config_from_huggingface(tmp_path) == config_from_huggingface(settings)


def test_shards(tmp_path: Path):
    settings, tensors, *_ = read_golden("llama-4-to-2")
    places = {name: f"model-{index % 2}.safetensors" for index, name in enumerate(tensors)}
    for file in set(places.values()):
        part = {name: tensors[name] for name, place in places.items() if place == file}
        save_file(part, tmp_path / file)
    (tmp_path / "config.json").write_text(json.dumps(settings))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    assert_equal(from_huggingface(tmp_path), from_huggingface(settings, tensors))

    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(UserError, match=r"there is no .*model-1\.safetensors"):
        from_huggingface(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    with pytest.raises(UserError, match="outside its directory"):
        from_huggingface(tmp_path)


def test_half_precision_becomes_float32(tmp_path: Path):
    settings, tensors, *_ = read_golden("llama-4-to-1")
    for dtype in (ml_dtypes.bfloat16, np.float16):
        narrow = {name: value.astype(dtype) for name, value in tensors.items()}
        write(tmp_path, settings, narrow)
        wide = {name: value.astype(np.float32) for name, value in narrow.items()}
        assert_equal(from_huggingface(tmp_path), from_huggingface(settings, wide))


def test_names_of_older_checkpoints():
    """No prefix, a mask among the weights, the head stored though tied; rope_theta at the top."""
    settings, tensors, *_ = read_golden("gpt2")
    old = {name.removeprefix("transformer."): value for name, value in tensors.items()}
    old |= {"h.0.attn.bias": np.ones((1, 1, 12, 12)), "lm_head.weight": old["wte.weight"]}
    assert_equal(from_huggingface(settings, old), from_huggingface(settings, tensors))

    assert config_from_huggingface({**LLAMA, "rope_theta": 500.0}).rotary_base == 500.0
    assert config_from_huggingface(CASES["llama-theta"]).rotary_base == 500.0
    infinite = {**MAMBA2, "time_step_limit": [0.0, {"__float__": "Infinity"}]}
    assert config_from_huggingface(infinite) == config_from_huggingface(MAMBA2)


def test_a_table_needs_every_tensor():
    settings, tensors, *_ = read_golden("mamba2")
    missing = dict(tensors)
    del missing["backbone.layers.1.mixer.A_log"]
    with pytest.raises(UserError, match=r"lacks tensors: layers\.1\.mixer\.A_log$"):
        from_huggingface(settings, missing)
    extra = {**tensors, "backbone.layers.2.mixer.D": np.ones(4)}
    with pytest.raises(UserError, match=r"has unexpected tensors: layers\.2\.mixer\.D$"):
        from_huggingface(settings, extra)
    wrong = {**tensors, "lm_head.weight": np.ones((VOCAB, 15), np.float32)}
    with pytest.raises(UserError, match=r"lm_head\.weight has shape \(23, 15\).*\(23, 16\)"):
        from_huggingface(settings, wrong)
    with pytest.raises(UserError, match=r"embed_tokens.* and 17 more$"):
        from_huggingface({**LLAMA}, {})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**GPT2, "activation_function": "relu"}, "activation_function relu"),
        ({**GPT2, "scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({**GPT2, "scale_attn_weights": False}, "scale_attn_weights"),
        ({**GPT2, "add_cross_attention": True}, "add_cross_attention"),
        ({**GPT2, "n_head": 3}, "not divisible by num_heads"),
        ({**GPT2, "n_embd": None}, "nothing of n_embd"),
        ({**GPT2, "model_type": "gpt-2"}, "did you mean gpt2"),
        ({**GPT2, "model_type": "bert"}, "model type 'bert'"),
        ({**GPT2, "quantization_config": {"bits": 4}}, "quantized"),
        ({**GPT2, "vocab_size": None}, "vocab_size"),
        ({}, "model type"),
        ({**LLAMA, "hidden_act": "gelu"}, "hidden_act gelu"),
        ({**LLAMA, "head_dim": 5}, "even width per head, not 5"),
        ({**LLAMA, "hidden_size": "16"}, "hidden_size must be a positive whole number"),
        ({**LLAMA, "rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_type yarn"),
        ({**LLAMA, "rope_scaling": [2.0]}, "must be an object"),
        ({**LLAMA, "rope_parameters": {"rope_type": "llama3"}}, "llama3 needs factor"),
        ({**LLAMA, "rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({**NEOX, "hidden_act": "relu"}, "hidden_act relu"),
        ({**MISTRAL, "sliding_window": 8}, "sliding_window 8"),
        ({**QWEN2, "use_sliding_window": True, "sliding_window": 8}, "sliding_window 8"),
        ({**QWEN3, "layer_types": ["sliding_attention"] * 2}, "sliding_window"),
        ({**LLAMA, "model_type": "gemma2"}, "gemma2: it has norms after its branches"),
        ({**LLAMA, "model_type": "mixtral"}, "experts"),
        ({**MAMBA2, "hidden_act": "relu"}, "hidden_act relu"),
        ({**MAMBA2, "time_step_limit": [0.0, 0.1]}, "time_step_limit"),
        ({**MAMBA2, "use_bias": True}, "use_bias"),
        ({**MAMBA2, "head_dim": 4}, "contradicts itself"),
        ({**MAMBA2, "n_groups": 3}, "ssm_groups 3"),
    ],
)
def test_unsupported_settings_are_one_line(settings: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message) as caught:
        from_huggingface(settings, {})
    assert "\n" not in str(caught.value)


def test_unreadable_directories(tmp_path: Path):
    with pytest.raises(UserError, match=r"there is no .*config\.json"):
        from_huggingface(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"cannot read .*config\.json"):
        from_huggingface(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(GPT2))
    with pytest.raises(UserError, match="safetensors"):
        from_huggingface(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"a pickle")
    with pytest.raises(UserError, match="is a pickle, which can execute anything"):
        from_huggingface(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"cannot read .*model\.safetensors"):
        from_huggingface(tmp_path)
    with pytest.raises(UserError, match="pass its tensors"):
        from_huggingface(GPT2)


TINY: dict[str, Any] = {"d_model": 8, "num_heads": 2, "num_steps": 2, "context": 8}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheme": "rk4"}, "steps of RK4 are no stack of layers"),
        ({"composition": "parallel", "prelude": 1}, "of Parallel and Sequential are no stack"),
        ({"composition": "parallel"}, "gpt-neox needs positions rope or none, not learned"),
        ({"field": "cycle", "composition": "parallel"}, "4 branches from one state"),
        ({"field": "shared", "injection": "add"}, "has an injection"),
        ({"field": "shared", "core_init": "zeros"}, "core_init zeros"),
        ({"block": "attention+ssm"}, r"no Hugging Face family has the block attention\+ssm"),
        ({"num_kv_heads": 1}, "kv_heads 2, not 1"),
        ({"head_dim": 6}, "d_head 4.0, not 6"),
        ({"qk_norm": True}, "qk_norm False"),
        ({"block": "attention+swiglu"}, "llama needs norm rmsnorm"),
        ({"block": "selective-ssm", "norm": "rmsnorm", "positions": "none"}, "bias False"),
    ],
)
def test_what_cannot_be_saved(changes: dict[str, Any], message: str, tmp_path: Path):
    config = ModelConfig(**{**TINY, **changes})
    model = build_config(config, vocab_size=5, key=jax.random.key(0))
    with pytest.raises(UserError, match=message):
        to_huggingface(model, config, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.peers
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied": False, "mlp_ratio": 1.5, "norm_eps": 1e-3},
        {"block": "attention+swiglu", "norm": "rmsnorm", "positions": "rope", "bias": False}
        | {"num_kv_heads": 1, "tied": False, "rotary_base": 99.0, "num_heads": 4, "d_model": 16},
        {"block": "attention+swiglu", "norm": "rmsnorm", "positions": "rope"},
        {"block": "selective-ssm", "norm": "rmsnorm", "positions": "none", "bias": False}
        | {"d_state": 4, "ssm_head_dim": 4, "ssm_groups": 2, "conv_width": 3},
    ],
)
def test_transformers_loads_what_was_saved(changes: dict[str, Any], tmp_path: Path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from hf_peers import logits_of

    config = ModelConfig(**{**TINY, **changes})
    model = build_config(config, vocab_size=VOCAB, key=jax.random.key(1))
    # Larger weights than a fresh model's, so that every part of it matters.
    model = jax.tree.map(
        lambda leaf: leaf + 0.3 * jax.random.normal(jax.random.key(2), leaf.shape), model
    )
    to_huggingface(model, config, tmp_path)
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokens = np.random.default_rng(0).integers(0, VOCAB, (2, 7)).astype(np.int32)
    ours = np.asarray(jax.jit(lambda model, tokens: model(tokens))(model, tokens))
    assert np.abs(ours - logits_of(theirs.eval(), tokens)).max() < 1e-4
