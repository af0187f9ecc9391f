"""Small random checkpoints of `transformers`, and their golden copies.

A golden file holds the tensors of one checkpoint, tokens, and the logits that `transformers`
computed; its settings are in the metadata.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import safe_open

GOLDEN = Path(__file__).parent / "golden"
VOCAB = 23

GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": VOCAB,
    "n_embd": 16,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 12,
}
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 12,
}
NEOX: dict[str, Any] = {
    "model_type": "gpt_neox",
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 40,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 12,
    "rotary_pct": 0.5,
}
QWEN2: dict[str, Any] = {**LLAMA, "model_type": "qwen2", "use_sliding_window": False}
QWEN3: dict[str, Any] = {**LLAMA, "model_type": "qwen3", "head_dim": 6}
MISTRAL: dict[str, Any] = {**LLAMA, "model_type": "mistral", "sliding_window": None}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MAMBA2: dict[str, Any] = {
    "model_type": "mamba2",
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_heads": 4,
    "head_dim": 8,
    "state_size": 6,
    "n_groups": 1,
    "num_hidden_layers": 2,
    "chunk_size": 4,
}

CASES: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "gpt2-wide-eps": {**GPT2, "n_inner": 24, "layer_norm_epsilon": 1e-2, "n_layer": 3},
    "gpt2-untied": {**GPT2, "n_head": 2, "tie_word_embeddings": False},
    "llama-4-to-2": LLAMA,
    "llama-4-to-1": {**LLAMA, "num_key_value_heads": 1, "tie_word_embeddings": True},
    "llama-4-to-4": {**LLAMA, "num_key_value_heads": 4, "attention_bias": True},
    "llama-biases": {**LLAMA, "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-2},
    "llama-theta": {**LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "llama-3": {**LLAMA, "rope_parameters": LLAMA3, "head_dim": 8, "num_hidden_layers": 1},
    "gpt_neox": NEOX,
    "gpt_neox-sequential": {**NEOX, "use_parallel_residual": False, "attention_bias": False}
    | {"rotary_pct": 1.0, "tie_word_embeddings": True, "hidden_act": "gelu_new"},
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen3-biases": {**QWEN3, "attention_bias": True, "tie_word_embeddings": True},
    "mistral": {**MISTRAL, "head_dim": 6},
    "mamba2": MAMBA2,
    "mamba2-groups": {**MAMBA2, "n_groups": 2, "num_heads": 8, "head_dim": 4},
    "mamba2-no-bias": {**MAMBA2, "use_conv_bias": False, "conv_kernel": 3, "n_groups": 2},
    "mamba2-tied": {**MAMBA2, "expand": 3, "num_heads": 6, "tie_word_embeddings": True},
}
KEPT = ("gpt2", "gpt2-untied", "llama-4-to-2", "llama-4-to-1", "llama-biases")
KEPT += ("llama-3", "gpt_neox", "gpt_neox-sequential", "qwen2", "qwen3", "mistral")
KEPT += ("mamba2", "mamba2-groups", "mamba2-no-bias")
"""The cases that have a golden copy."""


class Checkpoint(NamedTuple):
    settings: dict[str, Any]
    tensors: dict[str, np.ndarray]
    tokens: np.ndarray
    logits: np.ndarray


def random_tokens(seed: int, seq: int, batch: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, (batch, seq)).astype(np.int32)


def read_golden(name: str) -> Checkpoint:
    with safe_open(GOLDEN / f"{name}.safetensors", "numpy") as file:
        arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        settings = json.loads(file.metadata()["settings"])
    return Checkpoint(settings, arrays, arrays.pop("tokens"), arrays.pop("logits"))
