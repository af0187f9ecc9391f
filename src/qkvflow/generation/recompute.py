"""Generation without caches: the whole sequence again for every token.

For schemes that cannot keep caches (solvers), and the plain twin that the cached path
is tested against. The sequence is padded to a multiple of 64 so that few shapes are compiled.
Padding comes after the last token, which cannot see it; a solver's error control does,
so there the result agrees with an unpadded pass up to the solver's tolerance.
"""

import warnings
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from qkvflow.errors import Note
from qkvflow.generation.prompts import Window, round_up
from qkvflow.generation.sampling import Sampler, sequence_keys, token_keys
from qkvflow.lm import LanguageModel
from qkvflow.schemes import AbstractSolver

PAD = 64


@eqx.filter_jit
def _last_logits(
    model: LanguageModel, tokens: Int[Array, "1 seq"], last: Int[Array, ""]
) -> tuple[Float[Array, "1 vocab"], Bool[Array, ""]]:
    solution = model.integrate(tokens)
    logits = model.logits(jax.lax.dynamic_slice_in_dim(solution.x, last, 1))
    return logits, jnp.asarray(solution.succeeded)


def recompute(
    model: LanguageModel,
    prompt: list[int],
    num_tokens: int,
    sampler: Sampler,
    seed: int,
    sequence: int = 0,
    window: bool = False,
) -> Iterator[int]:
    """The same tokens as with caches, one at a time."""
    text = list(prompt)
    keys = sequence_keys(seed, jnp.array([sequence]))
    span = Window(model, window, len(text) + num_tokens)
    told = False
    for _ in range(num_tokens):
        seen = text[span.offset(len(text)) :]
        size = min(round_up(len(seen), PAD), span.length)
        padded = np.zeros((1, max(size, len(seen))), np.int32)
        padded[0, : len(seen)] = seen
        logits, arrived = _last_logits(model, jnp.asarray(padded), jnp.int32(len(seen) - 1))
        if not told and not arrived and isinstance(model.scheme, AbstractSolver):
            warnings.warn(model.scheme.gave_up(), Note, stacklevel=2)
            told = True
        text.append(int(sampler(logits, token_keys(keys, jnp.int32(len(text))))[0]))
        yield text[-1]
