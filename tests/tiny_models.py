"""Tiny models of every kind, for tests that run over the registries."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from qkvflow.lm import LanguageModel, build_config
from qkvflow.zoo import FIELDS, MIXERS, SCHEMES, ModelConfig, Registry

VOCAB, SEQ = 17, 9
TINY: dict[str, Any] = {
    "d_model": 16,
    "num_heads": 4,
    "num_kv_heads": 2,
    "num_steps": 3,
    "context": SEQ,
    "mlp_ratio": 2.0,
    "d_state": 4,
    "ssm_head_dim": 8,
    "ssm_groups": 2,
    "d_time": 6,
    "num_frequencies": 3,
    "gate_rank": 2,
    "rank": 2,
    "num_basis": 2,
    # Large, so that every part of a block matters to the logits.
    "init_std": 0.3,
}
LLAMA: dict[str, Any] = {"norm": "rmsnorm", "bias": False, "positions": "rope", "tied": False}


def _ordered(registry: Registry, *first: str) -> list[str]:
    """All members, these first: which cases meet in a test follows from the order."""
    return sorted(registry, key=lambda name: first.index(name) if name in first else len(first))


_FIRST = (
    "per-layer",
    "shared",
    "gated",
    "gated-generated",
    "hypernet",
    "per-layer-hypernet",
    "low-rank",
    "basis",
    "cycle",
    "frozen-time",
    "universal",
)
FIELD_CASES: dict[str, dict[str, Any]] = {
    name: {"field": "gated", "frozen_time": 0.4} if name == "frozen-time" else {"field": name}
    for name in (*_FIRST, *(name for name in sorted(FIELDS) if name not in _FIRST))
}
_BLOCKS: dict[str, dict[str, Any]] = {
    "attention+mlp": {},
    "attention+swiglu": LLAMA,
    "attention+ssm": {"final_norm": "time"},
    "attention+selective-ssm": {"attention_bias": False},
    "ssm": {"norm": "rmsnorm", "tied": False},
    "selective-ssm": {"positions": "none", "bias": False},
}
BLOCK_CASES: dict[str, dict[str, Any]] = {
    **_BLOCKS,
    # A mixer that nobody thought of here is met all the same.
    **{f"attention+{name}": {} for name in MIXERS if name not in "+".join(_BLOCKS).split("+")},
}
_SCHEMES: dict[str, dict[str, Any]] = {
    "euler": {"composition": "parallel"},
    "adaptive": {"tolerance": 1e-5},
    # Small increments beside the input: the loop is contractive.
    "fixed-point": {
        "tolerance": 1e-5,
        "injection": "diagonal",
        "num_steps": 1,
        "init_std": 0.03,
    },
}
SCHEME_CASES: dict[str, dict[str, Any]] = {
    name: {"scheme": name, **_SCHEMES.get(name, {})}
    for name in _ordered(
        SCHEMES, "residual", "euler", "midpoint", "heun", "rk4", "strang", "adaptive", "fixed-point"
    )
}


def config_of(
    field: str = "per-layer",
    block: str = "attention+mlp",
    scheme: str = "residual",
    **overrides: Any,
) -> ModelConfig:
    of_block = BLOCK_CASES.get(block, {})
    choices = {"block": block, **FIELD_CASES[field], **of_block, **SCHEME_CASES[scheme]}
    return ModelConfig(**{**TINY, **choices, **overrides})


def make(config: ModelConfig, seed: int = 0) -> LanguageModel:
    return build_config(config, vocab_size=VOCAB, key=jax.random.key(seed))


@cache
def tiny(
    field: str = "per-layer",
    block: str = "attention+mlp",
    scheme: str = "residual",
    **overrides: Any,
) -> LanguageModel:
    return make(config_of(field, block, scheme, **overrides))


def random_tokens(*shape: int, seed: int = 0) -> Array:
    return jnp.asarray(np.random.default_rng(seed).integers(0, VOCAB, shape), jnp.int32)


def randomised(tree: Any, size: float = 0.3, seed: int = 7) -> Any:
    """Every array moved at random, so that nothing is 0 or 1 by initialisation."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    moved = [
        leaf + size * jax.random.normal(key, leaf.shape)
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, moved)
