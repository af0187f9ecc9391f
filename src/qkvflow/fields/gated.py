"""Time-indexed sharing: shared base weights, gated by depth.

    W(t) = W_base * g(t)

The time-indexed extension (zaphrode/qkvflow) gates the input channels of qkv, the output channels
of the attention's output projection, and the input and hidden channels of the MLP. That is
`gate="time-indexed"`, which the roles of the matrices carry over to any mixer (`time_indexed`).
Positive quantities that are stored as logarithms (A and delta of a state space) are gated as the
quantities themselves, by adding log g. Biases are shared. Norms are generated from t (its
time-dependent LayerNorm), which is why the base is itself a field: a hypernetwork that generates
norms only.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from qkvflow.blocks.base import (
    AbstractMixer,
    AbstractNorm,
    AbstractWeights,
    Role,
    is_matrix,
    is_weights,
    leaves_with_nodes,
)
from qkvflow.fields.base import AbstractField, Depth, Depths, MakeBlock, at_one
from qkvflow.fields.hypernet import init_hypernet
from qkvflow.fields.parts.gates import AbstractGate, Features, init_gate
from qkvflow.fields.parts.time import AbstractTimeFeatures, features_of
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.registry import FIELDS


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
    """Shared weights under gates that are functions of depth."""

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
    by_element: tuple[type, ...] = (),
    key: PRNGKeyArray,
) -> Gated:
    """`generate` names the kinds of weights whose base is generated from t; the rest is shared.

    Matrices of the kinds in `by_element` have a gate for each element, whatever `gate` is.
    """
    key_base, key_gates = jax.random.split(key)
    structure = jax.tree.structure(block, is_leaf=is_weights)
    gates, compensated = [], []
    for index, (nodes, _, weights) in enumerate(leaves_with_nodes(block, is_weights)):
        kind = "full" if isinstance(weights, by_element) else gate
        made: dict[str, AbstractGate] = {}
        for name, role in weights.roles.items():
            value = getattr(weights, name)
            if value is None or not (is_matrix(role) or role in ("log", "gain")):
                continue
            made[name] = init_gate(
                time_indexed(role, nodes) if kind == "time-indexed" else kind,
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


def time_indexed(role: Role, nodes: list[Any]) -> str:
    """The time-indexed extension's choice: input channels of a matrix, but output channels where
    a token mixer writes to the residual stream."""
    mixes_tokens = any(isinstance(node, AbstractMixer) and node.mixes == "tokens" for node in nodes)
    return "output" if role == "out_proj" and mixes_tokens else "input"


def _compensate(weights: AbstractWeights, gates: dict[str, AbstractGate]) -> AbstractWeights:
    """The base weights that, gated, have the size they would have had ungated."""
    values = {}
    for name, gate in gates.items():
        value = getattr(weights, name)
        start = gate.start()
        values[name] = value - jnp.log(start) if weights.roles[name] == "log" else value / start
    return dataclasses.replace(weights, **values)


@FIELDS.register("gated")
def make_gated(make_block: MakeBlock, config: ModelConfig, key: PRNGKeyArray) -> Gated:
    return gated_by_config(make_block, config, key, gate=config.gate)


def gated_by_config(
    make_block: MakeBlock, config: ModelConfig, key: PRNGKeyArray, **choices: Any
) -> Gated:
    """`init_gated` with what a configuration says, and other choices by name."""
    key_block, key_features, key = jax.random.split(key, 3)
    return init_gated(
        make_block(key_block),
        features_of(config, key_features),
        d_time=config.d_time,
        activation=config.gate_activation,
        rank=config.gate_rank,
        key=key,
        **choices,
    )
