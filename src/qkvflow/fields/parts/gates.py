"""Gates: factors in front of a weight, as functions of depth.

    W(t) = W_base * g(t),   g = activation(features(t) U + b)

`input` scales the input channels of a matrix, `output` its output channels, `both` both;
`low-rank` gates each element, with pre-activations sum_r u_r(t) v_r(t)^T; `full` gates each element
freely. `sigmoid` is that of the time-indexed extension (zaphrode/qkvflow) and starts near 1/2, for
which the base weight makes up; `centred` is 2 sigmoid and starts at 1 exactly.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from qkvflow.blocks.base import Linear, init_linear
from qkvflow.errors import unknown
from qkvflow.zoo.config import GATE_ACTIVATIONS, GATES

Features = Float[Array, "depth features"]


def activation(z: Array, kind: str) -> Array:
    return jax.nn.sigmoid(z) if kind == "sigmoid" else 2.0 * jax.nn.sigmoid(z)


def neutral(kind: str) -> float:
    """The value of one gate at zero pre-activation."""
    return 0.5 if kind == "sigmoid" else 1.0


class AbstractGate(eqx.Module):
    @abc.abstractmethod
    def __call__(self, features: Features) -> Float[Array, "depth ..."]:
        """The factor at each depth, of a shape that multiplies the stacked weight."""

    @abc.abstractmethod
    def start(self) -> float:
        """The factor at zero pre-activation, for which the base weight makes up."""


class ChannelGate(AbstractGate):
    """One gate for each entry along one axis of the weight."""

    layer: Linear
    axis: int = eqx.field(static=True)
    """0 for the input channels of a matrix (or a vector's entries), 1 for its output channels."""
    ndim: int = eqx.field(static=True)
    activation: str = eqx.field(static=True)

    def __call__(self, features: Features) -> Float[Array, "depth ..."]:
        gate = activation(self.layer(features), self.activation)
        shape = [1] * self.ndim
        shape[self.axis] = gate.shape[-1]
        return gate.reshape(gate.shape[0], *shape)

    def start(self) -> float:
        return neutral(self.activation)


class BothGate(AbstractGate):
    """A gate on the input channels times a gate on the output channels."""

    in_proj: ChannelGate
    out_proj: ChannelGate

    def __call__(self, features: Features) -> Float[Array, "depth ..."]:
        return self.in_proj(features) * self.out_proj(features)

    def start(self) -> float:
        return self.in_proj.start() * self.out_proj.start()


class LowRankGate(AbstractGate):
    """A gate for each element whose pre-activations have low rank."""

    in_proj: Linear
    out_proj: Linear
    rank: int = eqx.field(static=True)
    activation: str = eqx.field(static=True)

    def __call__(self, features: Features) -> Float[Array, "depth ..."]:
        depth = features.shape[0]
        u = self.in_proj(features).reshape(depth, self.rank, -1)
        v = self.out_proj(features).reshape(depth, self.rank, -1)
        return activation(jnp.einsum("tri,tro->tio", u, v), self.activation)

    def start(self) -> float:
        return neutral(self.activation)


class FullGate(AbstractGate):
    """A gate for each element: as many parameters as features times the weight."""

    layer: Linear
    shape: tuple[int, ...] = eqx.field(static=True)
    activation: str = eqx.field(static=True)

    def __call__(self, features: Features) -> Float[Array, "depth ..."]:
        return activation(self.layer(features), self.activation).reshape(-1, *self.shape)

    def start(self) -> float:
        return neutral(self.activation)


def init_gate(
    kind: str,
    shape: tuple[int, ...],
    *,
    num_features: int,
    activation: str,
    rank: int,
    key: PRNGKeyArray,
) -> AbstractGate:
    """A gate for a weight of that shape; vectors are gated by entry whatever the kind."""
    key, other = jax.random.split(key)
    # Sigmoid gates start with some dependence on t; centred ones start at 1 exactly, so only
    # one factor of a product may start at random.
    std = 0.5 * num_features**-0.5 if activation == "sigmoid" else 0.0

    def layer(size: int, std: float, key: PRNGKeyArray) -> Linear:
        return init_linear(num_features, size, bias=True, std=std, key=key)

    def channels(axis: int, key: PRNGKeyArray) -> ChannelGate:
        return ChannelGate(layer(shape[axis], std, key), axis, len(shape), activation)

    if activation not in GATE_ACTIVATIONS:
        raise unknown("gate activation", activation, GATE_ACTIVATIONS)
    if len(shape) == 1 or kind == "input":
        return channels(0, key)
    if kind == "output":
        return channels(1, key)
    if kind == "both":
        return BothGate(channels(0, key), channels(1, other))
    if kind == "low-rank":
        spread = num_features**-0.5
        out_proj = layer(rank * shape[1], std, other)
        return LowRankGate(layer(rank * shape[0], spread, key), out_proj, rank, activation)
    if kind == "full":
        return FullGate(layer(shape[0] * shape[1], std, key), shape, activation)
    raise unknown("gate", kind, GATES)
