"""Looped models of the zoo at a small size, with the options that their authors' code asks for.

A golden file holds weights under our names, tokens, and the logits that the authors' code gave at
several numbers of loops; the options are in the metadata.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import qkvflow
from qkvflow.lm import LanguageModel
from qkvflow.runs.weights import path_name

VOCAB, SEQ = 11, 9
SMALL: dict[str, Any] = {"d_model": 16, "num_heads": 2, "context": 12, "layers_per_loop": 2}
ENDS: dict[str, Any] = {"prelude": 1, "coda": 1, "mlp_ratio": 2.5}

# Beside the shape: what an entry leaves open, or has otherwise than the code (docs/looped.md).
OPTIONS: dict[str, dict[str, Any]] = {
    "huginn": {
        **SMALL,
        **ENDS,
        "num_steps": 3,
        "scale_embedding": True,
        "attention_bias": True,
        "attention_out_bias": False,
    },
    "loopformer": {
        **SMALL,
        "num_steps": 4,
        "d_time": 32,
        "num_frequencies": 2,
        "activation": "gelu",
        "norm_eps": float(np.finfo(np.float32).eps),
    },
    "ouro": {**SMALL, "num_steps": 3, "mlp_ratio": 2.5, "rotary_base": 1e6},
    "parcae": {**SMALL, **ENDS, "num_steps": 3, "tied": True, "rotary_base": 50000.0},
}
DEPTHS: dict[str, tuple[int, ...]] = {
    "huginn": (1, 3, 6),
    "loopformer": (4,),
    "ouro": (1, 2, 3),
    "parcae": (1, 3, 6),
}
"""Numbers of loops. Ours takes LoopFormer's increments longer where there are fewer, theirs does
not."""


def blank(settings: dict[str, Any]) -> LanguageModel:
    """The entry with these options, and weights that are to be replaced."""
    options = {key: value for key, value in settings.items() if key not in ("entry", "depths")}
    return qkvflow.build(settings["entry"], vocab_size=VOCAB, key=jax.random.key(0), **options)


def filled(model: LanguageModel, tensors: dict[str, np.ndarray]) -> LanguageModel:
    """With the weights of these names."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.asarray(tensors[path_name(path)]).reshape(leaf.shape), model
    )
