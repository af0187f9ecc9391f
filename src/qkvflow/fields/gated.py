"""Time-indexed sharing: shared base weights, gated by depth.

    W(t) = W_base * g(t)

The documents gate the input channels of qkv, the output channels of the attention's output
projection, and the input and hidden channels of the MLP; that is `gate="documents"`, carried
over to the other mixers in the same spirit (`PLACEMENT`). Positive quantities that are stored as
logarithms (A and delta of a state space) are gated as the quantities themselves, by adding
log g. Biases are shared. Norms are generated from t (the documents' time-dependent
LayerNorm), which is why the base is itself a field: a hypernetwork that generates norms only.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from qkvflow.blocks.base import AbstractNorm, AbstractWeights, is_weights
from qkvflow.fields.base import AbstractField, Depth, Depths, at_one
from qkvflow.fields.gates import AbstractGate, Features, init_gate
from qkvflow.fields.hypernet import init_hypernet
from qkvflow.fields.time import AbstractTimeFeatures

PLACEMENT = {
    "qkv": "input",
    "out": "output",
    "gate": "input",
    "up": "input",
    "down": "input",
    "b": "input",
    "c": "output",
    "in_proj": "input",
    "out_proj": "output",
}
"""Where the documents' gates sit, by the name of the matrix."""


class Gates(eqx.Module):
    """The gates of one group of weights, by the name of the array."""

    by_name: dict[str, AbstractGate]

    def __call__(self, weights: AbstractWeights, features: Features) -> AbstractWeights:
        gated = {}
        for name, gate in self.by_name.items():
            value, factor = getattr(weights, name), gate(features)
            is_log = weights.roles[name] == "log"
            gated[name] = value + jnp.log(factor) if is_log else value * factor
        return dataclasses.replace(weights, **gated)


class Gated(AbstractField):
    base: AbstractField
    features: AbstractTimeFeatures
    gates: Any
    """A block in which `Gates` stand for groups of weights."""

    def stack(self, ts: Depths) -> Any:
        features = self.features(ts)
        return jax.tree.map(
            lambda gates, weights: gates(weights, features),
            self.gates,
            self.base.stack(ts),
            is_leaf=lambda x: isinstance(x, Gates),
        )

    def at(self, t: Depth) -> Any:
        return at_one(self, t)


def init_gated(
    block: Any,
    features: AbstractTimeFeatures,
    *,
    d_time: int,
    gate: str,
    activation: str,
    rank: int,
    generate: tuple[type, ...] = (AbstractNorm,),
    key: PRNGKeyArray,
) -> Gated:
    """`generate` names the kinds of weights whose base is generated from t; the rest is shared."""
    key_base, key_gates = jax.random.split(key)
    paths, structure = jax.tree_util.tree_flatten_with_path(block, is_leaf=is_weights)
    gates, compensated = [], []
    for index, (path, weights) in enumerate(paths):
        made: dict[str, AbstractGate] = {}
        for name, role in weights.roles.items():
            value = getattr(weights, name)
            if value is None or role not in ("matrix", "log", "gain"):
                continue
            matrix = path[-1].name if name == "weight" else name
            made[name] = init_gate(
                _placement(gate, matrix),
                value.shape,
                num_features=features.size,
                activation=activation,
                rank=rank,
                key=jax.random.fold_in(jax.random.fold_in(key_gates, index), len(made)),
            )
        gates.append(Gates(made))
        compensated.append(_compensate(weights, made))
    base = init_hypernet(
        jax.tree.unflatten(structure, compensated),
        features,
        d_time=d_time,
        select=lambda weights: isinstance(weights, generate),
        key=key_base,
    )
    return Gated(base, features, jax.tree.unflatten(structure, gates))


def _placement(gate: str, matrix: str) -> str:
    if gate == "published" and matrix in ("b", "c"):
        return "full"
    return PLACEMENT.get(matrix, "input") if gate in ("documents", "published") else gate


def _compensate(weights: AbstractWeights, gates: dict[str, AbstractGate]) -> AbstractWeights:
    """The base weights that, gated, have the size they would have had ungated."""
    values = {}
    for name, gate in gates.items():
        value = getattr(weights, name)
        start = gate.start()
        values[name] = value - jnp.log(start) if weights.roles[name] == "log" else value / start
    return dataclasses.replace(weights, **values)
