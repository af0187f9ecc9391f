"""Features and embeddings of t, for the fields whose weights depend on it smoothly.

`sinusoidal`  t, then S sines and S cosines of fixed frequencies: F = 2S + 1, as in the time-indexed
              extension (zaphrode/qkvflow). The frequencies are spaced geometrically from 1/4 to 4
              cycles over the whole depth. Much higher ones would alias on a grid of six steps and
              leave the weights between grid points to chance.
`learned`     the same with trained frequencies, drawn around zero (Tong et al. 2025,
              SDML-KU/qkvflow).
`raw`         t alone: F = 1.
`step`        sinusoidal features of t, and the same of the length dt of the step that the weights
              are for: F = 4S + 2 (LoopFormer, Jeddi et al. 2026). Whoever takes steps says how
              long they are (`with_steps`).
`layers`      hat functions on a grid of N layers: F = N. A linear map of these is one free
              value per layer, interpolated in between: the discrete control for the others.
"""

import abc
import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from qkvflow.blocks.base import Linear, init_linear
from qkvflow.errors import unknown
from qkvflow.fields.base import Depths
from qkvflow.zoo.config import TIME_FEATURES, ModelConfig


class AbstractTimeFeatures(eqx.Module):
    @property
    @abc.abstractmethod
    def size(self) -> int:
        """How many features there are."""

    @abc.abstractmethod
    def __call__(self, ts: Depths) -> Float[Array, "depth features"]:
        """Features of each t."""


def _waves(ts: Depths, cycles: Float[Array, " waves"]) -> Float[Array, "depth features"]:
    t = jnp.asarray(ts, jnp.float32)[:, None]
    angles = 2.0 * jnp.pi * t * cycles[None]
    return jnp.concatenate([t, jnp.sin(angles), jnp.cos(angles)], axis=-1)


class Sinusoidal(AbstractTimeFeatures):
    num_frequencies: int = eqx.field(static=True)

    @property
    def size(self) -> int:
        return 2 * self.num_frequencies + 1

    def __call__(self, ts: Depths) -> Float[Array, "depth features"]:
        return _waves(ts, jnp.geomspace(0.25, 4.0, self.num_frequencies))


class LearnedSinusoidal(AbstractTimeFeatures):
    cycles: Float[Array, " waves"]

    @property
    def size(self) -> int:
        return 2 * self.cycles.shape[0] + 1

    def __call__(self, ts: Depths) -> Float[Array, "depth features"]:
        return _waves(ts, self.cycles)


class RawTime(AbstractTimeFeatures):
    @property
    def size(self) -> int:
        return 1

    def __call__(self, ts: Depths) -> Float[Array, "depth features"]:
        return jnp.asarray(ts, jnp.float32)[:, None]


class StepFeatures(AbstractTimeFeatures):
    of_time: AbstractTimeFeatures
    of_step: AbstractTimeFeatures
    dt: float = eqx.field(static=True)
    lengths: Float[Array, " depth"] | None = None
    """Of the steps, where they are not all equally long."""

    @property
    def size(self) -> int:
        return self.of_time.size + self.of_step.size

    def __call__(self, ts: Depths) -> Float[Array, "depth features"]:
        dts = jnp.broadcast_to(self.dt if self.lengths is None else self.lengths, ts.shape)
        return jnp.concatenate([self.of_time(ts), self.of_step(dts)], axis=-1)


def with_steps(field: Any, dt: float | Float[Array, " depth"]) -> Any:
    """The field for steps of that length, which matters where its features know it."""

    def told(node: Any) -> Any:
        if not isinstance(node, StepFeatures):
            return node
        if isinstance(dt, float):
            return dataclasses.replace(node, dt=dt, lengths=None)
        return dataclasses.replace(node, lengths=dt)

    return jax.tree.map(told, field, is_leaf=lambda node: isinstance(node, StepFeatures))


class LayerHats(AbstractTimeFeatures):
    num_layers: int = eqx.field(static=True)

    @property
    def size(self) -> int:
        return self.num_layers

    def __call__(self, ts: Depths) -> Float[Array, "depth features"]:
        return hats(ts, self.num_layers)


def hats(ts: Depths, num_layers: int) -> Float[Array, "depth layers"]:
    """Linear interpolation weights of each t among the grid points (i + 1) / N.

    Before the first grid point the first layer's value holds.
    """
    position = jnp.asarray(ts, jnp.float32) * num_layers - 1.0
    position = jnp.clip(position, 0.0, num_layers - 1.0)
    distance = jnp.abs(position[:, None] - jnp.arange(num_layers, dtype=jnp.float32)[None])
    return jnp.maximum(0.0, 1.0 - distance)


def make_time_features(
    kind: str, *, num_frequencies: int, num_layers: int, key: PRNGKeyArray
) -> AbstractTimeFeatures:
    """Until `with_steps` says otherwise, `step` takes them to be 1 / num_layers long."""
    if kind == "sinusoidal":
        return Sinusoidal(num_frequencies)
    if kind == "learned":
        return LearnedSinusoidal(jax.random.normal(key, (num_frequencies,)))
    if kind == "step":
        each = Sinusoidal(num_frequencies)
        return StepFeatures(each, each, 1.0 / num_layers)
    if kind == "raw":
        return RawTime()
    if kind == "layers":
        return LayerHats(num_layers)
    raise unknown("time features", kind, TIME_FEATURES)


def features_of(config: ModelConfig, key: PRNGKeyArray) -> AbstractTimeFeatures:
    """The features that a configuration asks for."""
    return make_time_features(
        config.time_features,
        num_frequencies=config.num_frequencies,
        num_layers=config.layers,
        key=key,
    )


class TimeEmbedding(eqx.Module):
    """e(t) = W_2 silu(W_1 features(t) + b_1) + b_2."""

    first: Linear
    second: Linear

    def __call__(self, features: Float[Array, "depth features"]) -> Float[Array, "depth embed"]:
        return self.second(jax.nn.silu(self.first(features)))


def init_time_embedding(num_features: int, size: int, *, key: PRNGKeyArray) -> TimeEmbedding:
    key_first, key_second = jax.random.split(key)
    return TimeEmbedding(
        init_linear(num_features, size, bias=True, std=num_features**-0.5, key=key_first),
        init_linear(size, size, bias=True, std=size**-0.5, key=key_second),
    )
