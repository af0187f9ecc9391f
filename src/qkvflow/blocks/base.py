"""What a block is: branches, each a norm and a mixer, that turn a state into increments.

A block knows nothing of depth. Its arrays are simply the weights in effect; a field decides
where they come from and a scheme decides what is done with the increments.

The residual stream is kept as rows, `rows d_model`, with all sequences of a batch one after
another: a matrix product on rows is as fast as the machine goes, and only the attention core
and the state space scan unfold them into sequences (see `Rows`).
"""

import abc
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.tree_util import DictKey, GetAttrKey, SequenceKey
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from qkvflow.blocks.kernels import product

Role = Literal["in_proj", "out_proj", "matrix", "kernel", "bias", "scale", "gain", "log", "offset"]
"""What an array does in its layer. Fields, optimisers and sharding decide by it:

in_proj   a matrix (`in out`) whose input is the residual stream
out_proj  a matrix whose output is added to the residual stream
matrix    any other matrix
kernel    a short convolution (`width channels`)
bias      added; 0 does nothing
scale     multiplied; 1 does nothing (norm scales)
gain      multiplied, with no neutral value of its own (skip connections)
log       a positive quantity stored as its logarithm, so that it stays positive under any field
offset    added, with no neutral value of its own
"""


Mixes = Literal["tokens", "channels"]


def is_matrix(role: Role) -> bool:
    return role in ("in_proj", "out_proj", "matrix")


class AbstractWeights(eqx.Module):
    """Arrays that are used together: the unit a field generates, gates or shares."""

    @property
    @abc.abstractmethod
    def roles(self) -> dict[str, Role]:
        """The role of every array by its name; a class variable will do."""


def is_weights(x: Any) -> bool:
    return isinstance(x, AbstractWeights)


def leaves_with_nodes(
    tree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> list[tuple[list[Any], list[Any], Any]]:
    """Every leaf with the chain of nodes above it and the name of the step taken from each: what
    an array does follows from where it stands."""
    found = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]:
        nodes, names, node = [], [], tree
        for step in path:
            nodes.append(node)
            match step:
                case GetAttrKey(name=name):
                    names.append(name)
                    node = getattr(node, name)
                case DictKey(key=name) | SequenceKey(idx=name):
                    names.append(name)
                    node = node[name]
                case _:
                    raise TypeError(f"no such step in a model: {step!r}")
        found.append((nodes, names, leaf))
    return found


def map_by_path(tree: Any, decide: Callable[[list[Any], list[Any], Any], Any]) -> Any:
    """`decide(nodes, names, leaf)` for every array; see `leaves_with_nodes`."""
    decided = [decide(*each) for each in leaves_with_nodes(tree)]
    return jax.tree.unflatten(jax.tree.structure(tree), decided)


class Rows(eqx.Module):
    """How rows unfold into sequences: `batch` sequences of `seq` tokens, the first at `start`."""

    batch: int = eqx.field(static=True)
    seq: int = eqx.field(static=True)
    start: int | Int[Array, ""] = 0
    values: Float[Array, "batch seq kv_heads d_head"] | None = None
    """Of the first layer's attention, for attention that mixes them with its own."""

    def unfold(self, x: Float[Array, " rows *rest"]) -> Float[Array, "batch seq *rest"]:
        """Rows as sequences."""
        return x.reshape(self.batch, self.seq, *x.shape[1:])

    def fold(self, x: Float[Array, "batch seq *rest"]) -> Float[Array, " rows *rest"]:
        """Sequences as rows."""
        return x.reshape(self.batch * self.seq, *x.shape[2:])

    @property
    def positions(self) -> Int[Array, " seq"]:
        return self.start + jnp.arange(self.seq)


class AbstractMixer(eqx.Module):
    """A map from a normalised state to an increment, causal along the sequence."""

    mixes: eqx.AbstractClassVar[Mixes]
    """Whether an increment depends on earlier tokens or on its own token alone."""

    @abc.abstractmethod
    def __call__(
        self, x: Float[Array, "rows d_model"], rows: Rows, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "rows d_model"]:
        """The increment for whole sequences. With a key, dropout is on."""

    @abc.abstractmethod
    def init_state(self, batch: int, length: int, dtype: jnp.dtype) -> Any:
        """What `extend` needs to remember of the past, for at most `length` tokens."""

    @abc.abstractmethod
    def extend(
        self, x: Float[Array, "rows d_model"], rows: Rows, state: Any
    ) -> tuple[Float[Array, "rows d_model"], Any]:
        """The increment for the next `rows.seq` tokens of sequences whose past is `state`."""

    @abc.abstractmethod
    def flops_per_token(self, context: int) -> int:
        """Forward floating-point operations per token in sequences of length `context`.

        A multiply-add counts as two. Matrix products only: norms, activations and softmax are
        left out, as is usual. Attention counts the whole square of scores, as is usual too,
        although most of its masked half is never computed.
        """


class AbstractAppendingMixer(AbstractMixer):
    """A mixer that remembers every position: its state has a slot for each, and never changes
    one that is written. Saying what to append spares the copy of everything before it."""

    @abc.abstractmethod
    def project(self, x: Float[Array, "rows d_model"], rows: Rows, state: Any) -> tuple[Any, Any]:
        """What the new tokens ask of a state, and their slots in it; see `place`."""

    @abc.abstractmethod
    def recall(self, asked: Any, rows: Rows, state: Any) -> Float[Array, "rows d_model"]:
        """The increment, from what was asked and a state that the new tokens are in."""

    @abc.abstractmethod
    def append(
        self, x: Float[Array, "rows d_model"], rows: Rows, state: Any
    ) -> tuple[Float[Array, "rows d_model"], Any]:
        """As `extend`, but of the new state only the slots of the new tokens."""

    def extend(
        self, x: Float[Array, "rows d_model"], rows: Rows, state: Any
    ) -> tuple[Float[Array, "rows d_model"], Any]:
        asked, state = self.remember(x, rows, state)
        return self.recall(asked, rows, state), state

    def remember(self, x: Float[Array, "rows d_model"], rows: Rows, state: Any) -> tuple[Any, Any]:
        """What the new tokens ask, and the state with them in it."""
        asked, new = self.project(x, rows, state)
        return asked, jax.tree.map(lambda old, each: place(old, each, rows.start), state, new)


def place(state: Array, new: Array, start: int | Int[Array, ""]) -> Array:
    """The state with the new slots in place; anything that has no slots is replaced."""
    axes = [
        i for i, sizes in enumerate(zip(state.shape, new.shape, strict=True)) if len({*sizes}) > 1
    ]
    if not axes:
        return new
    return jax.lax.dynamic_update_slice_in_dim(state, new, start, axes[0])


class AbstractNorm(AbstractWeights):
    """A normalisation of the residual stream before a branch."""

    @abc.abstractmethod
    def __call__(self, x: Float[Array, "rows d_model"]) -> Float[Array, "rows d_model"]:
        """Normalise each row; computed in float32, returned in the type of `x`."""


def dropout(x: Array, rate: float, key: PRNGKeyArray | None) -> Array:
    """Zero each element with probability `rate` and rescale the rest; no key means off."""
    if key is None or rate == 0.0:
        return x
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))


class Branch(eqx.Module):
    """One residual branch: a mixer, and norms of its input, its output and the sum.

        y = dropout(after(mixer(norm(x)))),   increment = y, or outer(x + y) - x

    A norm that is None does nothing. With an outer norm a step of size 1 gives outer(x + y), as in
    a post-norm transformer; a shorter one goes part of the way there, so that every scheme takes
    such branches like any other.
    """

    norm: AbstractNorm | None
    mixer: AbstractMixer
    dropout: float = eqx.field(static=True, default=0.0)
    after: AbstractNorm | None = None
    outer: AbstractNorm | None = None

    def normalised(self, x: Float[Array, "rows d_model"]) -> Float[Array, "rows d_model"]:
        """What the mixer is given."""
        return x if self.norm is None else self.norm(x)

    def _increment(
        self, x: Float[Array, "rows d_model"], y: Float[Array, "rows d_model"], key: Any = None
    ) -> Float[Array, "rows d_model"]:
        if self.after is not None:
            y = self.after(y)
        y = dropout(y, self.dropout, key)
        return y if self.outer is None else self.outer(x + y) - x

    def __call__(
        self, x: Float[Array, "rows d_model"], rows: Rows, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "rows d_model"]:
        inner, outer = (None, None) if key is None else jax.random.split(key)
        return self._increment(x, self.mixer(self.normalised(x), rows, key=inner), outer)

    def extend(
        self, x: Float[Array, "rows d_model"], rows: Rows, state: Any
    ) -> tuple[Float[Array, "rows d_model"], Any]:
        """The increment of new tokens, and the cache after them."""
        y, state = self.mixer.extend(self.normalised(x), rows, state)
        return self._increment(x, y), state

    def extend_if(
        self, wanted: Bool[Array, ""], x: Float[Array, "rows d_model"], rows: Rows, state: Any
    ) -> tuple[Float[Array, "rows d_model"], Any]:
        """As `extend`; if it is not `wanted`, the cache alone, and increments of zero."""
        if isinstance(self.mixer, AbstractAppendingMixer):
            # Written before anything depends on what is wanted: XLA copies what a branch returns.
            mixer, nothing = self.mixer, jnp.zeros_like(x)
            asked, state = mixer.remember(self.normalised(x), rows, state)
            y = jax.lax.cond(
                wanted,
                lambda: self._increment(x, mixer.recall(asked, rows, state)).astype(x.dtype),
                lambda: nothing,
            )
            return y, state

        def extended() -> tuple[Float[Array, "rows d_model"], Any]:
            y, new = self.extend(x, rows, state)
            return y.astype(x.dtype), new

        # The compiler drops what only the increment needs.
        return jax.lax.cond(wanted, extended, lambda: (jnp.zeros_like(x), extended()[1]))

    def append(
        self, x: Float[Array, "rows d_model"], rows: Rows, state: Any
    ) -> tuple[Float[Array, "rows d_model"], Any]:
        """As `extend`, with what to `place` in the state instead of a new one."""
        if not isinstance(self.mixer, AbstractAppendingMixer):
            return self.extend(x, rows, state)
        y, new = self.mixer.append(self.normalised(x), rows, state)
        return self._increment(x, y), new


class Block(eqx.Module):
    """The branches of one layer, in the order a sequential scheme applies them."""

    branches: tuple[Branch, ...]

    def flops_per_token(self, context: int) -> int:
        """Of all branches, forward."""
        return sum(branch.mixer.flops_per_token(context) for branch in self.branches)


def cast_matrices(block: Any, dtype: jnp.dtype) -> Any:
    """The block with its matrices in `dtype`; vectors stay as they are, for precision.

    Layers cast their input to the type of their matrix, so this alone decides the type the
    products run in.
    """

    def cast(weights: AbstractWeights) -> AbstractWeights:
        names = [
            name
            for name, role in weights.roles.items()
            if is_matrix(role) and getattr(weights, name) is not None
        ]
        arrays = [getattr(weights, name).astype(dtype) for name in names]
        if not names:
            return weights
        return eqx.tree_at(lambda w: [getattr(w, name) for name in names], weights, arrays)

    return jax.tree.map(cast, block, is_leaf=is_weights)


class Linear(AbstractWeights):
    """y = x W + b, on rows. W is stored `in out`."""

    weight: Float[Array, "*depth d_in d_out"]
    bias: Float[Array, "*depth d_out"] | None
    role: Role = eqx.field(static=True, default="matrix")
    """Of the weight."""

    @property
    def roles(self) -> dict[str, Role]:
        return {"weight": self.role, "bias": "bias"}

    def __call__(self, x: Float[Array, "rows d_in"]) -> Float[Array, "rows d_out"]:
        return product(x, self.weight, self.bias)

    @property
    def flops_per_token(self) -> int:
        return 2 * self.weight.shape[-2] * self.weight.shape[-1]


def init_linear(
    d_in: int, d_out: int, *, bias: bool, std: float, key: PRNGKeyArray, role: Role = "matrix"
) -> Linear:
    """Normal weights of standard deviation `std`, zero bias."""
    weight = std * jax.random.normal(key, (d_in, d_out))
    return Linear(weight, jnp.zeros(d_out) if bias else None, role)
