"""Low-rank adapters on the weights in effect of any field (LoRA, Hu et al. 2021).

    W'(t) = W(t) + down up             one pair of factors, shared over depth
    W'(t) = W(t) + down(t) up(t)       a pair at every grid point, interpolated linearly between

The field that is adapted is asked for its weights as ever, wherever they come from. `up` starts at
0, so that an adapted model starts as the model it adapts.
"""

from fnmatch import fnmatchcase
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from qkvflow.blocks.base import AbstractWeights, Role, is_matrix, is_weights
from qkvflow.errors import UserError
from qkvflow.fields.base import AbstractField, Depth, Depths, at_one
from qkvflow.fields.parts.mixture import mixture
from qkvflow.fields.parts.time import hats
from qkvflow.schemes.parts.grid import grid
from qkvflow.zoo.config import parse_adapters


class Adapter(AbstractWeights):
    """The low-rank term of one matrix; with a leading axis of knots if it depends on depth."""

    down: Float[Array, "*knots d_in rank"]
    up: Float[Array, "*knots rank d_out"]

    roles: ClassVar[dict[str, Role]] = {"down": "matrix", "up": "matrix"}

    @property
    def by_depth(self) -> bool:
        return self.down.ndim == 3

    def at_knots(self, num_knots: int) -> "Adapter":
        """With so many knots, if it depends on depth; at these it is what it was."""
        if not self.by_depth or self.down.shape[0] == num_knots:
            return self
        weights = hats(grid(num_knots), self.down.shape[0])
        return Adapter(mixture(weights, self.down), mixture(weights, self.up))

    def __call__(self, ts: Depths) -> Float[Array, "#depth d_in d_out"]:
        if not self.by_depth:
            return (self.down @ self.up)[None]
        weights = hats(ts, self.down.shape[0])
        return mixture(weights, self.down) @ mixture(weights, self.up)


class Lora(AbstractField):
    """Low-rank adapters on the weights of any field."""

    field: AbstractField
    adapters: dict[str, Adapter]
    """By the name of the matrix in the block, as `branches.0.mixer.qkv.weight`."""

    def stack(self, ts: Depths) -> Any:
        def add(path: Any, leaf: Array) -> Array:
            adapter = self.adapters.get(name_of(path))
            return leaf if adapter is None else leaf + adapter(ts)

        return jax.tree_util.tree_map_with_path(add, self.field.stack(ts))

    def at(self, t: Depth) -> Any:
        return at_one(self, t)


def name_of(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def init_lora(
    field: AbstractField, *, patterns: str, rank: int, num_knots: int, key: PRNGKeyArray
) -> Lora:
    """Adapters for the matrices whose name, or a part of it, matches; the first match decides."""
    wanted = parse_adapters(patterns)
    shapes = matrices_of(field)
    adapters = {}
    for index, (name, (d_in, d_out)) in enumerate(shapes.items()):
        by_depth = next((depth for each, depth in wanted if matches(name, each)), None)
        if by_depth is None:
            continue
        knots = (num_knots,) if by_depth else ()
        each = jax.random.fold_in(key, index)
        down = jax.random.normal(each, (*knots, d_in, rank)) * d_in**-0.5
        adapters[name] = Adapter(down, jnp.zeros((*knots, rank, d_out)))
    if not adapters:
        known = sorted({name.split(".")[-2] for name in shapes})
        raise UserError(f"no matrix is named '{patterns}'; there are {', '.join(known)}, and '*'")
    return Lora(field, adapters)


def matches(name: str, pattern: str) -> bool:
    return any(fnmatchcase(each, pattern) for each in (name, *name.split(".")))


def matrices_of(field: AbstractField) -> dict[str, tuple[int, int]]:
    """Shapes of the block's matrices, by name."""
    block = eqx.filter_eval_shape(lambda field: field.at(1.0), field)
    groups, _ = jax.tree_util.tree_flatten_with_path(block, is_leaf=is_weights)
    return {
        f"{name_of(path)}.{name}": getattr(weights, name).shape
        for path, weights in groups
        for name, role in weights.roles.items()
        if is_matrix(role) and getattr(weights, name) is not None
    }
