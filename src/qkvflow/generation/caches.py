"""What is known of caches without knowing which mixer they belong to.

A cache leaf is *positional* if its size follows the length it was made for: keys and values, one
slot for each position. Going back is then a matter of the position alone: slots behind it are
hidden by the causal mask and overwritten by what comes. Every other leaf is *recurrent*: a summary
of the whole past, constant in the length, that can only be returned to by a copy.
"""

from typing import Any

import jax
import jax.numpy as jnp

from qkvflow.distributed.memory import check_fits
from qkvflow.lm import LanguageModel


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


def stack(caches: list[Any]) -> Any:
    """What `unstack` took apart."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *caches)


def cache_bytes(model: LanguageModel, batch: int, length: int) -> int:
    """The memory that a session's caches take."""
    leaves = jax.tree.leaves(jax.eval_shape(lambda: model.init_caches(batch, length)))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def check_caches(model: LanguageModel, batch: int, length: int) -> None:
    """Refuse caches that do not fit into memory, before they are made."""
    check_fits(
        cache_bytes(model, batch, length),
        f"generating {batch} sequences of {length} tokens",
        "generate fewer at once, or fewer tokens",
    )
