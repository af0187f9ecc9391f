"""What an array is to an optimiser: a block's matrix, another matrix, or neither.

Decided by what an array does, not by how many axes it has: a stack of per-layer biases has two axes
and is not a matrix, a hypernetwork's map from a time embedding to a bias has two and is one.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from qkvflow.blocks.base import AbstractWeights, is_matrix, map_by_path
from qkvflow.fields.hypernet import Generator
from qkvflow.fields.low_rank import LowRankWeights
from qkvflow.fields.modulated import Maps
from qkvflow.fields.parts.gates import AbstractGate
from qkvflow.fields.parts.time import TimeEmbedding
from qkvflow.fields.per_layer import PerLayer
from qkvflow.fields.wrappers.lora import Adapter

Kind = Literal["block matrix", "matrix", "vector"]
T = TypeVar("T", bound=Callable[..., Any])


def mup_power(power: float) -> Callable[[T], T]:
    """Says of an optimiser that mup divides its updates of a block's matrices by the width to this
    power: 1 where an update's entries are all of one size, 1/2 where it is a multiple of an
    orthogonal matrix with such entries, whose largest singular value grows as their root."""

    def mark(make: T) -> T:
        make.mup_power = power  # type: ignore[attr-defined]
        return make

    return mark


def width_scales(params: Any, ratio: float, power: float) -> Any:
    """What mup multiplies the update of every array by, at `ratio` times the width where it is as
    standard (Yang et al. 2022, table 8): what sums over the width learns slower the wider it is.

    block matrix    ratio^-power; of a low-rank term or an adapter down: 1 / ratio, up: 1 (its input
                    is the rank)
    generators' maps to matrices    1 / ratio: their entries are such a matrix's
    the rest        1: embeddings, gates, maps to scales and vectors sum over nothing that grows
    """

    def scale(nodes: list[Any], names: list[Any], leaf: Any) -> float:
        steps = list(zip(nodes, names, strict=True))
        if any(isinstance(node, LowRankWeights) and name == "factors" for node, name in steps):
            return 1.0 if names[-1] == 1 else 1.0 / ratio
        if isinstance(nodes[-1], Adapter):
            return 1.0 if names[-1] == "up" else 1.0 / ratio
        if any(isinstance(node, Maps) for node in nodes):
            return 1.0
        if any(isinstance(node, Generator) and name == "maps" for node, name in steps):
            return 1.0 / ratio if is_matrix(nodes[-1].roles[names[-1]]) else 1.0
        return ratio**-power if _kind(nodes, names, leaf) == "block matrix" else 1.0

    return map_by_path(params, scale)


def kinds(params: Any) -> Any:
    """The kind of every array.

    block matrix  a matrix that blocks are made of: per layer, shared, the offset of a generator,
                  the coefficients of a basis, the factors of a low-rank term or of an adapter, the
                  maps to the scales of a modulated field
    matrix        embeddings, positions, head; what maps a depth to weights (gates, time
                  embeddings, the maps of generators); convolutions
    vector        biases, norms, and whatever else is not a matrix
    """
    return map_by_path(params, _kind)


def matrices(params: Any) -> Any:
    """True for every array that is used as a matrix: the ones that decay."""
    return map_by_path(params, lambda *place: _kind(*place) != "vector")


def _kind(nodes: list[Any], names: list[Any], leaf: Any) -> Kind:
    """By the chain of nodes above an array and the name of the step taken from each."""
    steps = list(zip(nodes, names, strict=True))
    if any(isinstance(node, Generator) and name == "maps" for node, name in steps):
        return "matrix"
    if any(isinstance(node, LowRankWeights) and name == "factors" for node, name in steps):
        return "block matrix"
    group = nodes[-1]
    if isinstance(group, AbstractWeights):
        role = group.roles[names[-1]]
        of_depth = any(isinstance(node, AbstractGate | TimeEmbedding) for node in nodes)
        if is_matrix(role) and not of_depth:
            return "block matrix"
        return "matrix" if is_matrix(role) or role == "kernel" else "vector"
    stacked = sum(isinstance(node, PerLayer) and name == "layers" for node, name in steps)
    return "matrix" if leaf.ndim - stacked >= 2 else "vector"
