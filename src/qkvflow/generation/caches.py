"""What is known of caches without knowing which mixer they belong to.

A cache leaf is *positional* if its size follows the length it was made for: keys and values, one
slot for each position. Going back is then a matter of the position alone: slots behind it are
hidden by the causal mask and overwritten by what comes. Every other leaf is *recurrent*: a summary
of the whole past, constant in the length, that can only be returned to by a copy.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from qkvflow.distributed.memory import check_fits, tree_bytes
from qkvflow.lm import LanguageModel

_LEAST_SLOTS = 128


def positional(model: LanguageModel) -> Any:
    """A tree like the model's caches with True where a leaf is positional."""
    one, two = (jax.eval_shape(lambda n=n: model.init_caches(1, n)) for n in (1, 2))
    return jax.tree.map(lambda a, b: a.shape != b.shape, one, two)


def is_recurrent(model: LanguageModel) -> bool:
    """Whether any part of the caches is a summary of the past."""
    return not all(jax.tree.leaves(positional(model)))


def copy_recurrent(model: LanguageModel, caches: Any) -> list[Any]:
    """Copies of the recurrent leaves, in the order of the tree."""
    leaves, marks = jax.tree.leaves(caches), jax.tree.leaves(positional(model))
    return [jnp.copy(leaf) for leaf, by_place in zip(leaves, marks, strict=True) if not by_place]


def put_recurrent(model: LanguageModel, caches: Any, copies: list[Any]) -> Any:
    """The caches with their recurrent leaves put back."""
    leaves, structure = jax.tree.flatten(caches)
    marks, rest = jax.tree.leaves(positional(model)), iter(copies)
    leaves = [
        # A copy again: the caches are donated to the next step, the snapshot is not.
        leaf if by_place else jnp.copy(next(rest))
        for leaf, by_place in zip(leaves, marks, strict=True)
    ]
    return jax.tree.unflatten(structure, leaves)


def unstack(caches: Any, num_steps: int) -> list[Any]:
    """Caches with a leading depth axis as a list over depth."""
    return [jax.tree.map(lambda leaf, i=i: leaf[i], caches) for i in range(num_steps)]


def unstack_segments(model: LanguageModel, caches: tuple[Any, ...]) -> list[list[Any]]:
    """The caches of every segment as lists over depth."""
    return [
        unstack(each, part.num_steps) for each, part in zip(caches, model.segments, strict=True)
    ]


def share_equal(steps: list[Any]) -> list[Any]:
    """Trees of one structure, in which arrays that are equal have become the same: weights that
    repeat along depth are then read from one place. On CPUs alone, where looking costs no copy."""
    leaves, structures = zip(*map(jax.tree.flatten, steps), strict=True)
    columns = [_first_equals(arrays) for arrays in zip(*leaves, strict=True)]
    return [
        jax.tree.unflatten(structure, [column[i] for column in columns])
        for i, structure in enumerate(structures)
    ]


def _first_equals(arrays: tuple[Any, ...]) -> list[Any]:
    """For each array the first that is equal to it."""
    devices = arrays[0].devices() if isinstance(arrays[0], jax.Array) else ()
    if [device.platform for device in devices] != ["cpu"]:
        return list(arrays)
    # By their first entries, which nearly always tell: weights are seldom looked at whole.
    seen: dict[bytes, list[tuple[Array, np.ndarray]]] = {}
    made = []
    for array in arrays:
        values = np.asarray(array)
        alike = seen.setdefault(values.flat[:1].tobytes(), [])
        kept = next((first for first, other in alike if np.array_equal(other, values)), None)
        if kept is None:
            alike.append((array, values))
        made.append(array if kept is None else kept)
    return made


def lengthen(model: LanguageModel, caches: Any, batch: int, length: int) -> Any:
    """Caches, stacked or in lists, with empty slots at the end, for `length` tokens in all."""
    made = jax.eval_shape(lambda: model.init_caches(batch, length))
    if isinstance(caches, list):
        made = jax.eval_shape(lambda each: unstack_segments(model, each), made)

    def pad(old: Array, new: Any) -> Array:
        sizes = zip(old.shape, new.shape, strict=True)
        return jnp.pad(old, [(0, there - here) for here, there in sizes])

    return jax.tree.map(pad, caches, made)


def slot_sizes(model: LanguageModel, batch: int, length: int) -> list[int]:
    """How long caches for `length` tokens in the end are on their way: twice as long each time.
    The model is precomputed.

    Empty slots cost as much as full ones, another length a compilation: the first one is where
    reading the caches takes as long as reading the weights.
    """
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_array)))
    slot = cache_bytes(model, batch, 2) - cache_bytes(model, batch, 1)
    sizes = [_LEAST_SLOTS]
    while sizes[-1] < length:
        sizes.append(2 * sizes[-1])
    return [each for each in sizes if each * slot > weights and each < length] + [length]


def cache_bytes(model: LanguageModel, batch: int, length: int) -> int:
    """The memory that a session's caches take."""
    return tree_bytes(lambda: model.init_caches(batch, length))


def check_caches(model: LanguageModel, batch: int, length: int) -> None:
    """Refuse caches that do not fit into memory, before they are made."""
    check_fits(
        cache_bytes(model, batch, length),
        f"generating {batch} sequences of {length} tokens",
        "generate fewer at once, or fewer tokens",
    )
