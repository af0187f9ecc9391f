"""How the arrays of a run lie on a mesh of devices.

What is divided, and along which axes, is in `table`; here the same is said to JAX: as shardings of
what goes into and comes out of a program, and as constraints inside it on the states and the
weights along depth. The compiler does the rest.
"""

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from qkvflow.blocks.base import Branch
from qkvflow.distributed.mesh import ROWS, MeshShape, check_batch, make_mesh, mesh_shape
from qkvflow.distributed.table import axes_in_use, shardings, with_shardings
from qkvflow.errors import UserError
from qkvflow.lm import LanguageModel, Segment
from qkvflow.schemes.base import AbstractScheme, ApplyBranch, FieldLike, Hidden, Solution


@dataclasses.dataclass(frozen=True)
class Layout:
    """Everything of a run that depends on its mesh. On one device it does nothing."""

    shape: MeshShape
    mesh: Mesh

    @cached_property
    def replicated(self) -> NamedSharding:
        """A copy on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    def shardings(self, tree: Any) -> Any:
        """Of a model's arrays, or of a training state."""
        return shardings(tree, self.mesh)

    def like(self, tree: Any) -> Any:
        """Shapes with their shardings."""
        return with_shardings(tree, self.mesh)

    def place(self, tree: Any) -> Any:
        """Arrays that every process has whole, divided as the table says."""

        def divide(leaf: Any, sharding: NamedSharding) -> Array:
            value = np.asarray(leaf)
            return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

        return jax.tree.map(divide, tree, self.shardings(tree))

    def check(
        self, params: Any, batch_size: int, grad_accum: int = 1, *, num_heads: int | None = None
    ) -> None:
        """Refuse a mesh that does not divide the batch or the heads, or no array of the model."""
        check_batch(self.shape, batch_size, grad_accum)
        if num_heads is not None and num_heads % self.shape.tensor:
            raise UserError(
                f"tensor={self.shape.tensor} does not divide this model's {num_heads} heads; give "
                "a size that does, or another --model.num_heads"
            )
        used = axes_in_use(params, self.mesh)
        for axis in ("fsdp", "tensor"):
            size = getattr(self.shape, axis)
            if size > 1 and axis not in used:
                raise UserError(
                    f"{axis}={size} divides no width of this model; give a size that divides "
                    "d_model and the heads, or leave it out"
                )

    # Inside a program

    def shard_batch(self, x: Array) -> Array:
        """The leading axis, of sequences or of rows, divided over the batch's axes."""
        if self.shape.size == 1:
            return x
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, PartitionSpec(ROWS)))

    def shard_model(self, model: LanguageModel) -> LanguageModel:
        """The model with its states and its weights along depth divided."""
        if self.shape.size == 1:
            return model
        # Looked up in a table divided along its width, states would come out divided so too, and
        # would have to be exchanged; the table is much smaller than they are.
        table = NamedSharding(self.mesh, PartitionSpec("tensor"))
        divides = model.vocab_size % self.shape.tensor == 0
        constrained = jax.lax.with_sharding_constraint(
            (model.embedding, model.positions),
            (table if divides else self.replicated, self.replicated),
        )
        embedding, positions = constrained
        return dataclasses.replace(
            model,
            embedding=embedding,
            positions=positions,
            scheme=ShardedScheme(model.scheme, self),
            prelude=self._sharded(model.prelude),
            coda=self._sharded(model.coda),
            # Logits are divided with the batch: each device may hold as many as one alone.
            max_logits=self.shape.rows * model.max_logits,
        )

    def _sharded(self, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        return tuple(
            dataclasses.replace(each, scheme=ShardedScheme(each.scheme, self)) for each in segments
        )

    def weights(self, blocks: Any) -> Any:
        """The weights of a block, gathered as the mesh needs them for one depth."""
        return jax.lax.with_sharding_constraint(blocks, self.shardings(blocks))

    # From and to the host

    def replicate(self, value: Any) -> Array:
        """A copy of a host's array on every device; every process has to give the same."""
        value = np.asarray(value)
        return jax.make_array_from_callback(
            value.shape, self.replicated, lambda index: value[index]
        )

    def own_rows(self, batch_size: int) -> slice:
        """The rows of a batch that this process's devices need."""
        indices = self._batches.addressable_devices_indices_map((1, batch_size))
        spans = [each[1].indices(batch_size) for each in indices.values() if each is not None]
        return slice(min(span[0] for span in spans), max(span[1] for span in spans))

    def assemble(self, own: np.ndarray, batch_size: int) -> Array:
        """`steps batch ...` from this process's `own_rows` of it."""
        rows = self.own_rows(batch_size)

        def part(index: Any) -> np.ndarray:
            start, stop, _ = index[1].indices(batch_size)
            return own[index[0], start - rows.start : stop - rows.start]

        shape = (own.shape[0], batch_size, *own.shape[2:])
        return jax.make_array_from_callback(shape, self._batches, part)

    @cached_property
    def _batches(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(None, ROWS))

    def gathered(self, tree: Any) -> Any:
        """Whole arrays on one device of this process. Every process has to ask for them."""
        if self.shape.size == 1:
            return tree
        copies = jax.jit(lambda tree: tree, out_shardings=self.replicated)(tree)
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), copies)


def make_layout(mesh: str | None = None) -> Layout:
    """The layout for `--mesh`, or all devices on `data`."""
    shape = mesh_shape(mesh)
    return Layout(shape, make_mesh(shape))


def one_device() -> Layout:
    """Everything on the first device of this process."""
    shape = MeshShape()
    return Layout(shape, make_mesh(shape, jax.local_devices()[:1]))


class ShardedScheme(AbstractScheme):
    """A scheme whose states are divided over the batch's axes and whose weights as in the table."""

    scheme: AbstractScheme
    layout: Layout = eqx.field(static=True)

    @property
    def unwrapped(self) -> AbstractScheme:
        return self.scheme

    def integrate(
        self,
        field: FieldLike,
        x: Hidden,
        *,
        make_apply: Callable[[Any], ApplyBranch],
        **options: Any,
    ) -> Solution:
        return self.scheme.integrate(
            _Field(field, self.layout),
            self.layout.shard_batch(x),
            make_apply=lambda extra: _Apply(make_apply(extra), self.layout),
            **options,
        )


@dataclasses.dataclass(frozen=True)
class _Field:
    field: FieldLike
    layout: Layout

    def at(self, t: Any) -> Any:
        return self.layout.weights(self.field.at(t))

    def stack(self, ts: Any) -> Any:
        return self.layout.weights(self.field.stack(ts))


@dataclasses.dataclass(frozen=True)
class _Apply:
    apply: ApplyBranch
    layout: Layout

    def __call__(self, branch: Branch, x: Hidden) -> Hidden:
        return self.layout.shard_batch(self.apply(branch, x))

    def finish(self) -> Any:
        return self.apply.finish()
