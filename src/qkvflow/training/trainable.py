"""Which arrays of a model are trained: all, the adapters alone, or what says how depth enters.

    adapters  the factors of low-rank adapters (`fields.wrappers.lora`)
    gates     time features and embeddings, gates, and norms: how weights depend on t, and scales

What an array is, is told by the nodes above it in the model, not by its name.
"""

from typing import Any

import jax

from qkvflow.blocks.base import AbstractNorm, map_by_path
from qkvflow.errors import UserError
from qkvflow.fields.modulated import Maps
from qkvflow.fields.parts.gates import AbstractGate
from qkvflow.fields.parts.time import AbstractTimeFeatures, TimeEmbedding
from qkvflow.fields.wrappers.lora import Adapter
from qkvflow.lm import LanguageModel

KINDS: dict[str, tuple[type, ...]] = {
    "adapters": (Adapter,),
    "gates": (AbstractTimeFeatures, TimeEmbedding, AbstractGate, AbstractNorm, Maps),
}


def trained_arrays(params: Any, trainable: str) -> Any:
    """True for every array that is trained."""
    if trainable == "all":
        return jax.tree.map(lambda _: True, params)
    kinds = KINDS[trainable]
    return map_by_path(params, lambda nodes, *_: any(isinstance(node, kinds) for node in nodes))


def count_trained(params: Any, trainable: str) -> int:
    kept = jax.tree.leaves(trained_arrays(params, trainable))
    count = sum(leaf.size for leaf, keep in zip(jax.tree.leaves(params), kept, strict=True) if keep)
    if not count:
        raise UserError(f"this model has no {trainable} to train; choose another train.trainable")
    return count


def freeze(model: LanguageModel, trainable: str) -> LanguageModel:
    """The model with no gradient for the arrays that are left out: it is not even computed."""
    if trainable == "all":
        return model
    return jax.tree.map(
        lambda leaf, keep: leaf if keep else jax.lax.stop_gradient(leaf),
        model,
        trained_arrays(model, trainable),
    )
