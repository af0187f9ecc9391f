"""Gates: factors in front of a weight, as functions of depth.

    W(t) = W_base * g(t),   g = squash(features(t) U + b)

`input` scales the input channels of a matrix, `output` its output channels, `both` both;
`low-rank` gates each element, with pre-activations sum_r u_r(t) v_r(t)^T; `full` gates each element
freely. `sigmoid` is the documents' squash and starts near 1/2, for which the base weight makes
up; `centred` is 2 sigmoid and starts at 1 exactly.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from qkvflow.blocks.base import Linear, init_linear
from qkvflow.errors import unknown

Features = Float[Array, "depth features"]

SQUASHES = ("sigmoid", "centred")


def squash(z: Array, kind: str) -> Array:
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
    squash: str = eqx.field(static=True)

    def __call__(self, features: Features) -> Float[Array, "depth ..."]:
        gate = squash(self.layer(features), self.squash)
        shape = [1] * self.ndim
        shape[self.axis] = gate.shape[-1]
        return gate.reshape(gate.shape[0], *shape)

    def start(self) -> float:
        return neutral(self.squash)


class BothGate(AbstractGate):
    """A gate on the input channels times a gate on the output channels."""

    inward: ChannelGate
    outward: ChannelGate

    def __call__(self, features: Features) -> Float[Array, "depth ..."]:
        return self.inward(features) * self.outward(features)

    def start(self) -> float:
        return self.inward.start() * self.outward.start()


class LowRankGate(AbstractGate):
    """A gate for each element whose pre-activations have low rank."""

    inward: Linear
    outward: Linear
    rank: int = eqx.field(static=True)
    squash: str = eqx.field(static=True)

    def __call__(self, features: Features) -> Float[Array, "depth ..."]:
        depth = features.shape[0]
        u = self.inward(features).reshape(depth, self.rank, -1)
        v = self.outward(features).reshape(depth, self.rank, -1)
        return squash(jnp.einsum("tri,tro->tio", u, v), self.squash)

    def start(self) -> float:
        return neutral(self.squash)


class FullGate(AbstractGate):
    """A gate for each element: as many parameters as features times the weight."""

    layer: Linear
    shape: tuple[int, ...] = eqx.field(static=True)
    squash: str = eqx.field(static=True)

    def __call__(self, features: Features) -> Float[Array, "depth ..."]:
        return squash(self.layer(features), self.squash).reshape(-1, *self.shape)

    def start(self) -> float:
        return neutral(self.squash)


GATES = ("documents", "published", "input", "output", "both", "low-rank", "full")


def init_gate(
    kind: str,
    shape: tuple[int, ...],
    *,
    num_features: int,
    squash: str,
    rank: int,
    key: PRNGKeyArray,
) -> AbstractGate:
    """A gate for a weight of that shape; vectors are gated by entry whatever the kind."""
    key, other = jax.random.split(key)
    # Sigmoid gates start with some dependence on t; centred ones start at 1 exactly, so only
    # one factor of a product may start at random.
    std = 0.5 * num_features**-0.5 if squash == "sigmoid" else 0.0

    def layer(size: int, std: float, key: PRNGKeyArray) -> Linear:
        return init_linear(num_features, size, bias=True, std=std, key=key)

    def channels(axis: int, key: PRNGKeyArray) -> ChannelGate:
        return ChannelGate(layer(shape[axis], std, key), axis, len(shape), squash)

    if squash not in SQUASHES:
        raise unknown("gate squash", squash, SQUASHES)
    if len(shape) == 1 or kind == "input":
        return channels(0, key)
    if kind == "output":
        return channels(1, key)
    if kind == "both":
        return BothGate(channels(0, key), channels(1, other))
    if kind == "low-rank":
        spread = num_features**-0.5
        outward = layer(rank * shape[1], std, other)
        return LowRankGate(layer(rank * shape[0], spread, key), outward, rank, squash)
    if kind == "full":
        return FullGate(layer(shape[0] * shape[1], std, key), shape, squash)
    raise unknown("gate", kind, GATES)
