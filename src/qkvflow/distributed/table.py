"""The table from what an array does to the mesh axes it is divided along.

A matrix that reads the residual stream has its output channels (heads, hidden units) on `tensor`;
one that writes to the stream has its input channels there, so that between the two nothing has
to be exchanged (Shoeybi et al. 2019). The stream's side of each is on `fsdp`. Vectors stay whole:
they are small beside the matrices.

Leading axes (depth, basis, the embedding of a hypernetwork) are never divided. A hypernetwork's map
is therefore divided exactly as the weights it makes, so that making them needs no exchange and
no device has a whole generated stack.

An axis that does not divide its side of an array evenly goes to the other side, or is left out.

A new mixer needs nothing here: its arrays have roles. An array without a role, of a new field, say,
is laid out as a matrix.
"""

import math
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from qkvflow.blocks.base import AbstractWeights, map_by_path
from qkvflow.fields.parts.time import TimeEmbedding

AnyMesh = Mesh | AbstractMesh
"""Of devices, or of sizes alone."""
Axes = tuple[str | None, ...]
"""Of the last axes of an array."""

TABLE: dict[str, Axes] = {
    "in_proj": ("fsdp", "tensor"),
    "out_proj": ("tensor", "fsdp"),
    "matrix": ("fsdp", "tensor"),
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


def part_of(nodes: list[Any], names: list[Any], leaf: Any) -> str:
    """The row of the table for an array, from the chain of nodes above it."""
    if any(isinstance(node, TimeEmbedding) for node in nodes):
        return "time"
    group = nodes[-1] if nodes else None
    if isinstance(group, AbstractWeights):
        return group.roles[names[-1]]
    if names and names[-1] in ("embedding", "positions", "head"):
        return str(names[-1])
    return "other" if leaf.ndim > 1 else "vector"


def spec(part: str, shape: tuple[int, ...], mesh: AnyMesh) -> PartitionSpec:
    """How an array of that shape is divided: by the table's axes, where they divide it evenly."""
    wanted = TABLE[part][-len(shape) :] if shape else ()
    first = len(shape) - len(wanted)
    taken: list[tuple[str, ...]] = [()] * len(shape)
    placed = {first + i: axis for i, axis in enumerate(wanted) if axis is not None}
    for own, axis in placed.items():
        for place in (own, *placed):
            parts = math.prod(mesh.shape[each] for each in (*taken[place], axis))
            if mesh.shape[axis] > 1 and shape[place] % parts == 0:
                taken[place] = (*taken[place], axis)
                break
    while taken and not taken[-1]:
        taken.pop()
    return PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in taken))


def shardings(tree: Any, mesh: AnyMesh) -> Any:
    """A sharding for every array (or shape) of a tree that holds a model, its weights along depth,
    or an optimiser's state, which repeats the model's structure."""

    def decide(nodes: list[Any], names: list[Any], leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, spec(part_of(nodes, names, leaf), leaf.shape, mesh))

    return map_by_path(tree, decide)


def with_shardings(tree: Any, mesh: AnyMesh) -> Any:
    """Shapes with their shardings, to compile for or to restore into."""
    return jax.tree.map(
        lambda leaf, each: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=each),
        tree,
        shardings(tree, mesh),
    )


def axes_in_use(tree: Any, mesh: AnyMesh) -> set[str]:
    """The axes along which at least one array of the tree is divided."""
    return {
        axis
        for each in jax.tree.leaves(shardings(tree, mesh))
        for axis in jax.tree.leaves(tuple(each.spec))
    }
