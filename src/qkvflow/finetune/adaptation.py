"""A pretrained model at another depth and with adapters: its configuration, and its first weights.

The flow stays: the horizon is that of the pretrained model (or the length of a step is, with
`depth_dial: repeat`), so N' steps are the same way through
depth as N, taken more finely or coarsely. A field that is a function of t has weights at
every depth. A per-layer field has them only at its N layers, so N' layers of its own are made

    interpolate  from the two neighbouring layers' weights, at the new grid's depths
    repeat       from the layer that the new one falls into, floor(i N / N')
    keep         not at all: the N layers stay, and are interpolated in every forward pass
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from qkvflow.errors import unknown
from qkvflow.fields import AbstractField, Lora, PerLayer, Shared
from qkvflow.fields.base import on_grid
from qkvflow.fields.parts.time import with_steps
from qkvflow.lm import LanguageModel, abstract, build_config
from qkvflow.runs.load import Trained
from qkvflow.zoo import ModelConfig

METHODS = {"full": "all", "lora": "adapters", "gates": "gates"}
"""Method to what it trains (`train.trainable`)."""
LAYERS = ("interpolate", "repeat", "keep")


@dataclasses.dataclass(frozen=True)
class Adaptation:
    """How a pretrained model is changed before it is trained further."""

    method: str = "full"
    """full, lora (adapters alone) or gates (time features, gates and norms alone)."""
    num_steps: int | None = None
    """Another number of depth steps."""
    scheme: str | None = None
    """Another scheme."""
    adapter: str = "*"
    """For lora: patterns over the names of matrices, :depth for adapters that depend on depth."""
    rank: int = 8
    """For lora: rank of the adapters."""
    layers: str = "interpolate"
    """What a per-layer field does at another depth: interpolate, repeat or keep its layers."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise unknown("method", self.method, METHODS)
        if self.layers not in LAYERS:
            raise unknown("way to change layers", self.layers, LAYERS)


def model_changes(base: Trained, adaptation: Adaptation) -> dict[str, Any]:
    """What the adapted model's configuration changes of the pretrained one's."""
    old = base.config.model.config
    num_steps = adaptation.num_steps or base.model.num_steps
    changes: dict[str, Any] = {
        "num_steps": num_steps,
        "scheme": adaptation.scheme or old.scheme,
        "horizon": base.model.at_depth(num_steps).horizon,
        "residual_scale": None,
        "num_layers": None if _reshaped(base.model.field, adaptation) else old.layers,
    }
    if adaptation.method == "lora" and old.lora == "none":
        changes |= {"lora": adaptation.adapter, "lora_rank": adaptation.rank}
    return changes


def adapted_model(
    base: Trained, config: ModelConfig, adaptation: Adaptation, *, key: PRNGKeyArray
) -> LanguageModel:
    """The pretrained weights as a model of `config`; the key is for adapters."""
    field, vocab_size = base.model.field, base.model.vocab_size
    # Of a fresh model's weights only adapters stay.
    if config.lora == "none" or isinstance(field, Lora):
        fresh = abstract(config, vocab_size=vocab_size)
    else:
        fresh = build_config(config, vocab_size=vocab_size, key=key)
    if _reshaped(field, adaptation):
        assert isinstance(field, PerLayer)
        field = relayered(field, config.num_steps, adaptation.layers)
    if isinstance(field, Lora):
        field = Lora(
            field.field, {k: each.at_knots(config.num_steps) for k, each in field.adapters.items()}
        )
    elif isinstance(fresh.field, Lora):
        field = Lora(field, fresh.field.adapters)
    others = ("embedding", "positions", "prelude", "injection", "coda", "norm", "head", "exit_gate")
    kept = {name: getattr(base.model, name) for name in others}
    return dataclasses.replace(fresh, field=with_steps(field, 1.0 / config.num_steps), **kept)


def relayered(field: PerLayer, num_layers: int, how: str) -> PerLayer:
    """A per-layer field of another number of layers, each with weights of its own."""
    if how == "repeat":
        index = np.arange(num_layers) * field.num_layers // num_layers
        return PerLayer(jax.tree.map(lambda leaf: leaf[index], field.layers), num_layers)
    return PerLayer(Shared(on_grid(field, num_layers)), num_layers)


def _reshaped(field: AbstractField, adaptation: Adaptation) -> bool:
    """Whether layers are made anew. Only a plain stack of layers has any to make."""
    if not isinstance(field, PerLayer) or not isinstance(field.layers, Shared):
        return False
    other = adaptation.num_steps is not None and adaptation.num_steps != field.num_layers
    return other and adaptation.layers != "keep"
