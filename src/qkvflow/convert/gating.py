"""A gated field fitted to trained layers: W_i ~ W_base * g_i, by alternating least squares.

With gates g_i on the channels of one axis (or a product of two), each of base and gates has a
closed form where the other is held,

    g_ia = sum_b W_iab B_ab / sum_b B_ab^2   (at least a small positive number),
    B    = sum_i g_i W_i / sum_i g_i^2,

and the error falls with every sweep. A sigmoid gives gates between 0 and 1, which the base makes
up for; it cannot change a sign. The layer before it is the least-squares map of the time features
to the gates' pre-activations, after which the base is fitted once more, to the gates as they are.
Norms are generated from t: least squares on the generator's embedding. Biases are shared.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qkvflow.blocks.base import AbstractWeights, Block, Linear, is_weights
from qkvflow.convert.layers import least_squares, replaced, tied
from qkvflow.errors import UserError
from qkvflow.fields import Gated, Hypernet
from qkvflow.fields.gated import Gates
from qkvflow.fields.hypernet import Generator, is_generator
from qkvflow.fields.parts.gates import AbstractGate, BothGate, ChannelGate
from qkvflow.schemes import grid

SWEEPS = 50
_LEAST, _MOST = 1e-3, 0.75
"""Of a gate, over the largest that its activation gives."""


def fit_gated(layers: Block, fresh: Gated, base: str) -> Gated:
    num_layers = jax.tree.leaves(layers)[0].shape[0]
    features = np.asarray(fresh.features(grid(num_layers)), np.float64)
    groups, structure = jax.tree.flatten(layers, is_leaf=is_weights)
    assert isinstance(fresh.base, Hypernet)
    generators = jax.tree.leaves(
        fresh.base.generators, is_leaf=lambda x: is_generator(x) or is_weights(x)
    )
    gates = jax.tree.leaves(fresh.gates, is_leaf=lambda x: isinstance(x, Gates))
    bases, gated = [], []
    for group, generator, each in zip(groups, generators, gates, strict=True):
        if isinstance(generator, Generator):
            bases.append(_generated(group, generator, features))
            gated.append(each)
            continue
        arrays, made = {}, dict(each.by_name)
        for name, role in group.roles.items():
            if getattr(group, name) is None:
                continue
            values = np.asarray(getattr(group, name), np.float64)
            if name not in made:
                [shared] = tied(values, 1, base)
            elif role == "log":
                shared, made[name] = _fit_log(values, made[name], features)
            else:
                shared, made[name] = _fit(values, made[name], features)
            arrays[name] = jnp.asarray(shared, jnp.float32)
        bases.append(replaced(generator, arrays))
        gated.append(Gates(made))
    hypernet = dataclasses.replace(fresh.base, generators=jax.tree.unflatten(structure, bases))
    return Gated(hypernet, fresh.features, jax.tree.unflatten(structure, gated))


def alternate(
    values: np.ndarray, axes: tuple[int, ...], sweeps: int = SWEEPS
) -> tuple[np.ndarray, list[np.ndarray], list[float]]:
    """Base, gates (`layers channels` for each axis, at most 1), and the squared error of every
    sweep, for values `layers *shape`."""
    ndim = values.ndim - 1
    gates = [np.ones((len(values), values.shape[1 + axis])) for axis in axes]
    base, errors = values.mean(axis=0), []
    for _ in range(sweeps):
        for place, axis in enumerate(axes):
            others = _product(gates, axes, ndim, without=place) * base[None]
            rest = tuple(1 + other for other in range(ndim) if other != axis)
            size = np.square(others).sum(axis=rest)
            found = (values * others).sum(axis=rest) / np.maximum(size, 1e-30)
            found = np.maximum(found, _LEAST * found.max(axis=0, initial=1e-30))
            gates[place] = found / found.max(axis=0)
            base = base * _along(found.max(axis=0)[None], axis, ndim)[0]
        gate = _product(gates, axes, ndim)
        base = refit(values, gate)
        errors.append(float(np.square(values - base[None] * gate).sum()))
    return base, gates, errors


def refit(values: np.ndarray, gate: np.ndarray) -> np.ndarray:
    """The best base for gates that broadcast to the values."""
    gate = np.broadcast_to(gate, values.shape)
    return (gate * values).sum(axis=0) / np.square(gate).sum(axis=0)


def _along(gate: np.ndarray, axis: int, ndim: int) -> np.ndarray:
    shape = [1] * ndim
    shape[axis] = gate.shape[-1]
    return gate.reshape(len(gate), *shape)


def _product(
    gates: list[np.ndarray], axes: tuple[int, ...], ndim: int, without: int | None = None
) -> np.ndarray:
    product = np.ones((len(gates[0]), *[1] * ndim))
    for place, (gate, axis) in enumerate(zip(gates, axes, strict=True)):
        if place != without:
            product = product * _along(gate, axis, ndim)
    return product


def _fit(
    values: np.ndarray, gate: AbstractGate, features: np.ndarray
) -> tuple[np.ndarray, AbstractGate]:
    """The base and the gate of one array."""
    parts = _channel_gates(gate)
    _, found, _ = alternate(values, tuple(part.axis for part in parts))
    made = [_with_values(part, each, features) for part, each in zip(parts, found, strict=True)]
    whole = made[0] if len(made) == 1 else BothGate(*made)
    actual = np.asarray(whole(jnp.asarray(features, jnp.float32)), np.float64)
    return refit(values, actual), whole


def _fit_log(
    values: np.ndarray, gate: AbstractGate, features: np.ndarray
) -> tuple[np.ndarray, AbstractGate]:
    """A logarithm, to which that of its gate is added."""
    [part] = _channel_gates(gate)
    made = _with_values(part, np.exp(values - values.max(axis=0)), features)
    actual = np.asarray(made(jnp.asarray(features, jnp.float32)), np.float64)
    return (values - np.log(actual)).mean(axis=0), made


def _channel_gates(gate: AbstractGate) -> list[ChannelGate]:
    if isinstance(gate, ChannelGate):
        return [gate]
    if isinstance(gate, BothGate):
        return [gate.in_proj, gate.out_proj]
    raise UserError(
        "gates on single elements are not fitted; choose --gate time-indexed, input, output or both"
    )


def _with_values(gate: ChannelGate, values: np.ndarray, features: np.ndarray) -> ChannelGate:
    """The gate that takes these values (at most 1) at the layers, up to a factor."""
    share = _MOST * np.maximum(values, _LEAST)
    wanted = np.log(share) - np.log1p(-share)
    bias = wanted.mean(axis=0)
    weight = least_squares(features, wanted - bias)
    layer = Linear(jnp.asarray(weight, jnp.float32), jnp.asarray(bias, jnp.float32))
    return dataclasses.replace(gate, layer=layer)


def _generated(group: AbstractWeights, like: Generator, features: np.ndarray) -> Generator:
    embedding = np.asarray(like.embedding(jnp.asarray(features, jnp.float32)), np.float64)
    maps: dict[str, Any] = {}
    for name, role in group.roles.items():
        if getattr(group, name) is not None:
            values = np.asarray(getattr(group, name), np.float64) - (role == "scale")
            maps[name] = jnp.asarray(least_squares(embedding, values), jnp.float32)
    return dataclasses.replace(like, maps=replaced(like.maps, maps))
