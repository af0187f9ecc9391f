"""What an array is to an optimiser: a block's matrix, another matrix, or neither.

Decided by what an array does, not by how many axes it has: a stack of per-layer biases has two axes
and is not a matrix, a hypernetwork's map from a time embedding to a bias has two and is one.
"""

from typing import Any, Literal

from qkvflow.blocks.base import AbstractWeights, is_matrix, map_by_path
from qkvflow.fields.hypernet import Generator
from qkvflow.fields.low_rank import LowRankWeights
from qkvflow.fields.parts.gates import AbstractGate
from qkvflow.fields.parts.time import TimeEmbedding
from qkvflow.fields.per_layer import PerLayer

Kind = Literal["block matrix", "matrix", "vector"]


def kinds(params: Any) -> Any:
    """The kind of every array.

    block matrix  a matrix that blocks are made of: per layer, shared, the offset of a generator,
                  the coefficients of a basis, the factors of a low-rank term or of an adapter
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
