"""Cross-entropy of the next token, without ever holding the logits of a whole batch.

    loss_k = log sum_v exp(logits_kv) - logits_k,target

With a vocabulary of 50,257 the logits are by far the largest array of a training step: 1 GB for
five thousand tokens, and their gradient as much again. Beyond `MAX_LOGITS` they are therefore made,
used and dropped in pieces along the sequence, forward, and piece by piece once more backward:
the head's product is computed twice. Every piece has tokens of every sequence, so that sequences
spread over devices stay where they are.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from qkvflow.lm.model import LanguageModel

MAX_LOGITS = 1 << 24
"""Logits that may exist at once: 64 MiB of them."""


def loss(
    model: LanguageModel,
    tokens: Int[Array, "*batch seq"],
    targets: Int[Array, "*batch seq"],
    *,
    mask: Float[Array, "*batch seq"] | None = None,
    key: PRNGKeyArray | None = None,
    max_logits: int = MAX_LOGITS,
) -> Float[Array, ""]:
    """Mean cross-entropy in nats per token (over the tokens that `mask` keeps)."""
    each = token_losses(model, tokens, targets, key=key, max_logits=max_logits)
    if mask is None:
        return jnp.mean(each)
    return jnp.sum(each * mask) / jnp.sum(mask)


def token_losses(
    model: LanguageModel,
    tokens: Int[Array, "*batch seq"],
    targets: Int[Array, "*batch seq"],
    *,
    key: PRNGKeyArray | None = None,
    max_logits: int = MAX_LOGITS,
) -> Float[Array, "*batch seq"]:
    """Cross-entropy of every token in nats, in pieces of at most about `max_logits` logits."""
    x = model.integrate(tokens, key=key).x
    h = model.norm.at(1.0)(x)
    seq = tokens.shape[-1]
    batch = tokens.size // seq
    pieces = num_pieces(batch, seq, model.vocab_size, max_logits)
    if pieces == 1:
        return _cross_entropy(model, h, targets.reshape(-1)).reshape(targets.shape)

    length = -(-seq // pieces)
    padding = ((0, 0), (0, pieces * length - seq))

    def cut(rows: Array, *width: int) -> Array:
        """`rows` as pieces of `length` tokens of every sequence."""
        padded = jnp.pad(rows.reshape(batch, seq, *width), (*padding, *((0, 0),) * len(width)))
        each = jnp.moveaxis(padded.reshape(batch, pieces, length, *width), 1, 0)
        return each.reshape(pieces, batch * length, *width)

    @jax.checkpoint
    def piece(h: Array, targets: Array) -> Array:
        return _cross_entropy(model, h, targets)

    made = jax.lax.map(lambda each: piece(*each), (cut(h, h.shape[-1]), cut(targets)))
    whole = jnp.moveaxis(made.reshape(pieces, batch, length), 0, 1).reshape(batch, -1)
    return whole[:, :seq].reshape(targets.shape)


def num_pieces(batch: int, seq: int, vocab_size: int, max_logits: int = MAX_LOGITS) -> int:
    """How many pieces along the sequence keep to `max_logits`, one token being the smallest."""
    length = max(1, min(seq, max_logits // (batch * vocab_size)))
    return -(-seq // length)


def _cross_entropy(
    model: LanguageModel, h: Float[Array, "rows d_model"], targets: Int[Array, " rows"]
) -> Float[Array, " rows"]:
    logits = model.project(h)
    picked = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    return jax.nn.logsumexp(logits, axis=-1) - picked
