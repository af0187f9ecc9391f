"""From logits to a token: temperature, top-k, top-p, and randomness without state.

The distribution is softmax(logits / temperature), cut to the `top_k` most likely tokens, and of
those to the smallest set with a probability of at least `top_p` (Holtzman et al. 2020), in this
order. Temperature 0 takes the most likely token.

A draw is the Gumbel-max of that distribution, argmax(log p + g), with noise g that is a pure
function of (seed, sequence, position): not of what else is in the batch, nor of how many tokens
a program makes at a time.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from qkvflow.errors import UserError


class Sampler(eqx.Module):
    """What to draw from. Numbers are arrays, so that changing them compiles nothing again."""

    temperature: Float[Array, ""] | None
    """None: greedy."""
    top_k: int | None = eqx.field(static=True)
    top_p: Float[Array, ""] | None

    def log_weights(self, logits: Float[Array, "batch vocab"]) -> Float[Array, "batch vocab"]:
        """Logarithms of the distribution, up to a constant; -inf for what is cut off."""
        if self.temperature is None:
            best = jnp.argmax(logits, axis=-1)[:, None]
            tokens = jnp.arange(logits.shape[-1])[None]
            return jnp.where(tokens == best, 0.0, -jnp.inf)
        logits = logits.astype(jnp.float32) / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = jax.lax.top_k(logits, self.top_k)[0][:, -1:]
            logits = jnp.where(logits >= least, logits, -jnp.inf)
        if self.top_p is not None:
            ordered = jnp.sort(logits, axis=-1, descending=True)
            probs = jax.nn.softmax(ordered, axis=-1)
            # A token stays if those before it do not reach top_p; the first always does.
            kept = (jnp.cumsum(probs, axis=-1) - probs) < self.top_p
            kept = kept.at[:, 0].set(True)
            least = jnp.min(jnp.where(kept, ordered, jnp.inf), axis=-1, keepdims=True)
            logits = jnp.where(logits >= least, logits, -jnp.inf)
        return logits

    def probabilities(self, logits: Float[Array, "batch vocab"]) -> Float[Array, "batch vocab"]:
        """The distribution that `__call__` draws from."""
        return jax.nn.softmax(self.log_weights(logits), axis=-1)

    def __call__(
        self, logits: Float[Array, "batch vocab"], keys: Key[Array, " batch"]
    ) -> Int[Array, " batch"]:
        """One token for each row, with a key for each."""
        if self.temperature is None:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        drawn = jax.vmap(jax.random.categorical)(keys, self.log_weights(logits))
        return drawn.astype(jnp.int32)


def make_sampler(
    *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Sampler:
    """A sampler of checked numbers."""
    if not 0.0 <= temperature < 1e38:
        raise UserError(f"temperature must be 0 (greedy) or positive, not {temperature}")
    if top_k is not None and top_k < 1:
        raise UserError(f"top_k must be at least 1, not {top_k}")
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise UserError(f"top_p must be in (0, 1], not {top_p}")
    if temperature == 0.0:
        return Sampler(None, None, None)
    return Sampler(
        jnp.float32(temperature),
        top_k,
        None if top_p is None or top_p == 1.0 else jnp.float32(top_p),
    )


def sequence_keys(
    seed: int | Int[Array, " batch"], sequences: Int[Array, " batch"]
) -> Key[Array, " batch"]:
    """A key for each sequence; `sequences` says which of all the prompts of a seed these are."""
    if isinstance(seed, int):
        return jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(sequences)
    return jax.vmap(lambda s, i: jax.random.fold_in(jax.random.key(s), i))(seed, sequences)


def token_keys(keys: Key[Array, " batch"], position: Int[Array, ""]) -> Key[Array, " batch"]:
    """The keys of the tokens at `position`, from those of the sequences."""
    return jax.vmap(lambda key: jax.random.fold_in(key, position))(keys)
