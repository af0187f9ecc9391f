"""The table from what an array does to the mesh axes it is divided along.

A matrix that reads the residual stream has its output channels (heads, hidden units) on `tensor`;
one that writes to the stream has its input channels there, so that between the two nothing has
to be exchanged (Shoeybi et al. 2019). The stream's side of each is on `fsdp`. Vectors stay whole:
they are small beside the matrices.

Leading axes (depth, basis, the embedding of a hypernetwork) are never divided. A hypernetwork's map
is therefore divided exactly as the weights it makes, so that making them needs no exchange and
no device has a whole generated stack.

An axis that does not divide its array evenly is left out for that array. A new block needs nothing
here: its arrays have roles. An array without a role, of a new field, say, is laid out as a matrix.
"""

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from qkvflow.blocks.base import AbstractWeights, map_by_path
from qkvflow.fields.time import TimeEmbedding

Axes = tuple[str | None, ...]
"""Of the last axes of an array."""

TABLE: dict[str, Axes] = {
    "matrix": ("fsdp", "tensor"),
    "matrix to the stream": ("tensor", "fsdp"),
    "kernel": (None, "tensor"),
    "bias": (None,),
    "scale": (None,),
    "gain": (None,),
    "log": (None,),
    "offset": (None,),
    "embedding": ("tensor", "fsdp"),
    "positions": (None, "fsdp"),
    "head": ("fsdp", "tensor"),
    "time": (None,),
    "vector": (None,),
    "other": ("fsdp", "tensor"),
}

TO_THE_STREAM = frozenset({"out", "down", "outward", "c"})
"""Names, of a matrix or of its layer in the mixer, that write to the residual stream."""


def part_of(nodes: list[Any], names: list[Any], leaf: Any) -> str:
    """The row of the table for an array, from the chain of nodes above it."""
    if any(isinstance(node, TimeEmbedding) for node in nodes):
        return "time"
    group = nodes[-1] if nodes else None
    if isinstance(group, AbstractWeights):
        role = group.roles[names[-1]]
        return "matrix to the stream" if role == "matrix" and TO_THE_STREAM & {*names} else role
    if names and names[-1] in ("embedding", "positions", "head"):
        return str(names[-1])
    return "other" if leaf.ndim > 1 else "vector"


def spec(part: str, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """How an array of that shape is divided: the table's axes, where they divide it evenly."""
    axes = TABLE[part][-len(shape) :] if shape else ()
    kept: list[str | None] = [None] * (len(shape) - len(axes))
    for axis, size in zip(axes, shape[len(shape) - len(axes) :], strict=True):
        divides = axis is not None and mesh.shape[axis] > 1 and size % mesh.shape[axis] == 0
        kept.append(axis if divides else None)
    while kept and kept[-1] is None:
        kept.pop()
    return PartitionSpec(*kept)


def shardings(tree: Any, mesh: Mesh) -> Any:
    """A sharding for every array (or shape) of a tree that holds a model, its weights along depth,
    or an optimiser's state, which repeats the model's structure."""

    def decide(nodes: list[Any], names: list[Any], leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, spec(part_of(nodes, names, leaf), leaf.shape, mesh))

    return map_by_path(tree, decide)


def with_shardings(tree: Any, mesh: Mesh) -> Any:
    """Shapes with their shardings, to compile for or to restore into."""
    return jax.tree.map(
        lambda leaf, each: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=each),
        tree,
        shardings(tree, mesh),
    )


def axes_in_use(tree: Any, mesh: Mesh) -> set[str]:
    """The axes along which at least one array of the tree is divided."""
    return {
        axis
        for each in jax.tree.leaves(shardings(tree, mesh))
        for axis in each.spec
        if axis is not None
    }
