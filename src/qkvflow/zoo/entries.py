"""The zoo: named models, as data. Every entry is what it changes of the defaults.

`published/...` entries exist to reproduce, to the digit, the parameter counts that the time-indexed
extension (zaphrode/qkvflow) published; they are not baselines.
"""

from typing import Any

from qkvflow.errors import UserError, unknown
from qkvflow.zoo.registry import MODELS

_GATED: dict[str, Any] = {"field": "gated", "final_norm": "time"}
_LLAMA: dict[str, Any] = {
    "block": "attention+swiglu",
    "norm": "rmsnorm",
    "norm_eps": 1e-6,
    "bias": False,
    "positions": "rope",
    "mlp_ratio": 8.0 / 3.0,
    "tied": False,
}
_EULER: dict[str, Any] = {"scheme": "euler", "composition": "parallel"}

_MODELS: dict[str, dict[str, Any]] = {
    "standard": {},
    "standard-llama": {**_LLAMA},
    "shared": {"field": "shared"},
    "tong": {"field": "hypernet", **_EULER},
    "tong-llama": {"field": "hypernet", **_LLAMA, **_EULER},
    "time-indexed-mlp": {**_GATED},
    "time-indexed-ssm": {**_GATED, "block": "attention+ssm"},
    "time-indexed-selective-ssm": {**_GATED, "block": "attention+selective-ssm"},
    "ode-ssm": {"field": "hypernet", "block": "attention+ssm", **_EULER},
    "hybrid": {**_GATED, **_EULER},
    "low-rank": {"field": "low-rank"},
    "basis": {"field": "basis"},
    "mamba": {
        "block": "selective-ssm",
        "norm": "rmsnorm",
        "bias": False,
        "positions": "none",
        "d_state": 64,
    },
}

# Looped models, each with the number of loops that its size gives. docs/looped.md says what each
# was checked against, and where it differs from its paper.
_LOOPED: dict[str, Any] = {"field": "cycle", "prelude": 2, "coda": 2, "depth_dial": "repeat"}
_MODELS |= {
    # Middle layers run twice (arXiv 2609.01343): of 8 layers the middle 4.
    "cycle": {**_LOOPED, "layers_per_loop": 4, "num_steps": 2},
    # Geiping et al. 2025: e = P(tokens), s_0 noise, s_i = R([s_{i-1}; e] A), logits C(norm(s_r)),
    # with 2, 4 and 2 layers of norms before every branch and of every sum. Agrees with the authors'
    # code (seal-rg/recurrent-pretraining) on the same weights, with attention_bias for its biases
    # of queries and keys and scale_embedding.
    "huginn": {
        **_LOOPED,
        **_LLAMA,
        "tied": True,
        "norm_placement": "pre-post",
        "coda_norm": True,
        "rotary_base": 50000.0,
        "layers_per_loop": 4,
        "injection": "concat",
        "core_init": "noise",
    },
    # LoopLM, Ouro (arXiv 2510.25741): the whole stack four times, norms on both sides of a branch
    # and one at the end of every loop, from which head and exit gate read. Agrees with the released
    # code on the same weights.
    "ouro": {
        **_LLAMA,
        "field": "cycle",
        "layers_per_loop": 6,
        "num_steps": 4,
        "depth_dial": "repeat",
        "norm_placement": "sandwich",
        "loop_norm": True,
        "final_norm": "none",
        "exit_gate": True,
    },
    # Dehghani et al. 2019: one block, with coordinates of position and step before every step;
    # without adaptive halting, and with GELU for ReLU. Norms before the branches as in the authors'
    # code (tensor2tensor); with the paper's, after the sums, twelve steps of 64 learnt nothing.
    "universal": {
        "field": "universal",
        "positions": "none",
        "scale_embedding": True,
    },
    # LoopFormer (Jeddi et al. 2026): three layers, eight times, modulated by t and dt. Agrees with
    # the authors' code (armenjeddi/loopformer) on the same modulations; train.shortcut is its loss.
    "loopformer": {
        "field": "modulated",
        "layers_per_loop": 3,
        "num_steps": 8,
        "time_features": "step",
        "norm": "rmsnorm",
        "bias": False,
        "mlp_ratio": 2.5,
    },
    # Parcae (arXiv 2604.12946): s_i = R(exp(-delta A) s_{i-1} + delta B e), A and delta positive;
    # written from that equation, with A, delta and B diagonal, and equal to the authors' code
    # (sandyresearch/parcae) where that is so.
    "parcae": {
        **_LOOPED,
        **_LLAMA,
        "layers_per_loop": 2,
        "injection": "diagonal",
        "core_init": "noise",
    },
    # Deep equilibrium (Bai et al. 2019): one layer, x* = g(x*, e), with implicit gradients. Theirs
    # has norms after the sums and adds e U to queries, keys and values; here a pre-norm layer and
    # the decaying injection keep g contractive at the start, between a layer before and one after.
    "deq": {
        "field": "shared",
        "scheme": "fixed-point",
        "num_steps": 1,
        "prelude": 1,
        "coda": 1,
        "injection": "diagonal",
        "core_init": "zeros",
        "depth_dial": "repeat",
    },
}

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"d_model": 64, "num_steps": 4, "num_heads": 4, "context": 128},
    "small": {"d_model": 256, "num_steps": 6, "num_heads": 4, "context": 512},
    "medium": {"d_model": 512, "num_steps": 12, "num_heads": 8, "context": 1024},
    "large": {"d_model": 1024, "num_steps": 24, "num_heads": 16, "context": 2048},
}

_PUBLISHED_SHAPE: dict[str, Any] = {**SIZES["small"], "positions": "none", "tied": False}
_STACK = {**_PUBLISHED_SHAPE, "field": "per-layer-hypernet", "final_norm": "time"}
_MLP = {**_PUBLISHED_SHAPE, **_GATED, "attention_bias": False, "mlp_ratio": 1.0}
_SSM = {
    **_PUBLISHED_SHAPE,
    "field": "gated-generated",
    "final_norm": "time",
    "block": "attention+ssm",
    "attention_bias": False,
}
_WIDE_TIME = {"num_frequencies": 64, "d_time": 129}

PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "published/standard-transformer": (_STACK, 308_460_480),
    "published/tong": ({**_PUBLISHED_SHAPE, "field": "hypernet", **_EULER}, 51_512_960),
    "published/time-indexed-mlp": (_MLP, 715_840),
    "published/time-indexed-ssm": (_SSM, 4_901_760),
    "published/standard-transformer-129": ({**_STACK, **_WIDE_TIME}, 617_430_932),
    "published/time-indexed-mlp-129": ({**_MLP, **_WIDE_TIME}, 956_684),
    "published/time-indexed-ssm-129": ({**_SSM, **_WIDE_TIME}, 9_411_600),
}
"""Configuration and published number of parameters, all with a vocabulary of 256."""

_ELSEWHERE = {
    "gpt": "the architecture of GPT-2 is 'standard'",
    "llama": "Llama's is 'standard-llama'",
    "mamba2": "that of Mamba-2 is 'mamba'",
    "mamba-2": "that of Mamba-2 is 'mamba'",
}
"""Families of checkpoints elsewhere, and what they are called here."""


def register(name: str, **changes: Any) -> None:
    """Add a model of your own to the zoo, by what it changes of the defaults."""
    if name in PUBLISHED:
        raise UserError(f"there is a model '{name}' already; choose another name")
    MODELS.register(name)(changes)


for _name, _changes in _MODELS.items():
    register(_name, **_changes)


def names() -> list[str]:
    """The names `build` takes, without the published ones."""
    _load_installed()
    return list(MODELS)


def entry(name: str, size: str = "small") -> dict[str, Any]:
    """What the named model changes of the defaults, at that size."""
    if size not in SIZES:
        raise unknown("size", size, SIZES)
    if name in PUBLISHED:
        return dict(PUBLISHED[name][0])
    if name not in MODELS:
        _load_installed()
    if name not in MODELS:
        if family := next((each for each in _ELSEWHERE if each in name.lower()), None):
            raise UserError(
                f"there is no model '{name}'; {_ELSEWHERE[family]}, and pretrained weights are "
                "brought in with 'qkvflow import hf:OWNER/NAME --out DIR'"
            )
        raise unknown("model", name, [*MODELS, *PUBLISHED])
    return {**SIZES[size], **MODELS[name]}


def _load_installed() -> None:
    from qkvflow.zoo.plugins import load_installed

    load_installed()
