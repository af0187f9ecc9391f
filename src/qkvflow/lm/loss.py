"""Cross-entropy of the next token, without ever holding the logits of a whole batch.

    loss_k = log sum_v exp(logits_kv) - logits_k,target

With a vocabulary of 50,257 the logits are by far the largest array of a training step: 1 GB for
five thousand tokens, and their gradient as much again. Beyond the model's `max_logits` they are
therefore made, used and dropped in pieces along the sequence, forward, and piece by piece once
more backward: the head's product is computed twice. Every piece has tokens of every sequence, so
that sequences spread over devices stay where they are.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from qkvflow.lm.model import LanguageModel


def loss(
    model: LanguageModel,
    tokens: Int[Array, "*batch seq"],
    targets: Int[Array, "*batch seq"],
    *,
    mask: Float[Array, "*batch seq"] | None = None,
    key: PRNGKeyArray | None = None,
) -> Float[Array, ""]:
    """Mean cross-entropy in nats per token (over the tokens that `mask` keeps)."""
    each = token_losses(model, tokens, targets, key=key)
    if mask is None:
        return jnp.mean(each)
    return jnp.sum(each * mask) / jnp.sum(mask)


def token_losses(
    model: LanguageModel,
    tokens: Int[Array, "*batch seq"],
    targets: Int[Array, "*batch seq"],
    *,
    key: PRNGKeyArray | None = None,
    edges: Float[Array, " edges"] | None = None,
    free: Int[Array, ""] | None = None,
) -> Float[Array, "*batch seq"]:
    """Cross-entropy of every token in nats, in pieces where there would be too many logits."""
    return _entropies(model, model.integrate(tokens, key=key, edges=edges, free=free).x, targets)


class Work(NamedTuple):
    """What a solver did with a batch, or with each of several."""

    evaluations: Float[Array, "*batches"]
    """Of a whole block of the core."""
    arrived: Bool[Array, "*batches"]
    residual: Float[Array, "*batches"]
    """Largest entry of what was left of an equation that is solved."""


def token_losses_and_work(
    model: LanguageModel,
    tokens: Int[Array, "*batch seq"],
    targets: Int[Array, "*batch seq"],
    *,
    key: PRNGKeyArray | None = None,
) -> tuple[Float[Array, "*batch seq"], Work]:
    """As `token_losses`, and what the core's solver did for them."""
    solution = model.integrate(tokens, key=key)
    work = Work(
        jnp.asarray(solution.num_evaluations, jnp.float32),
        jnp.asarray(solution.succeeded),
        jnp.asarray(solution.residual, jnp.float32),
    )
    return _entropies(model, solution.x, targets), work


def _entropies(
    model: LanguageModel, x: Float[Array, "rows d_model"], targets: Int[Array, "*batch seq"]
) -> Float[Array, "*batch seq"]:
    h = model.norm.at(1.0)(x)

    def entropies(h: Array, targets: Array) -> Array:
        return _cross_entropy(model.project(h), targets)

    return _by_pieces(
        entropies, targets.shape, model.vocab_size, model.max_logits, h, targets.reshape(-1)
    )


def token_losses_and_gaps(
    model: LanguageModel,
    finer: LanguageModel,
    tokens: Int[Array, "*batch seq"],
    targets: Int[Array, "*batch seq"],
    *,
    key: PRNGKeyArray | None = None,
    edges: Float[Array, " edges"] | None = None,
) -> tuple[Float[Array, "*batch seq"], Float[Array, "*batch seq"]]:
    """As `token_losses`, and how far `finer`, the same model at more steps, is from it:
    KL(p || p_finer) of the two predictions at every token, in nats."""
    h, fine = _last_states(model, tokens, key, edges), _last_states(finer, tokens, key, None)

    def both(h: Array, fine: Array, targets: Array) -> tuple[Array, Array]:
        logits = model.project(h)
        here, there = jax.nn.log_softmax(logits), jax.nn.log_softmax(finer.project(fine))
        gaps = jnp.sum(jnp.exp(here) * (here - there), axis=-1)
        return _cross_entropy(logits, targets), gaps

    return _by_pieces(
        both, tokens.shape, model.vocab_size, model.max_logits // 2, h, fine, targets.reshape(-1)
    )


def token_losses_and_shortcut(
    model: LanguageModel,
    shorter: LanguageModel,
    tokens: Int[Array, "*batch seq"],
    targets: Int[Array, "*batch seq"],
    *,
    key: PRNGKeyArray | None = None,
    edges: Float[Array, " edges"],
) -> tuple[Float[Array, "*batch seq"], Float[Array, "*batch seq"], Float[Array, ""]]:
    """As `token_losses`, of the model and of `shorter`, the same with steps between `edges`, and
    the mean square by which what the head reads of it differs from the model's own, held fixed."""
    h, short = _last_states(model, tokens, key, None), _last_states(shorter, tokens, key, edges)

    def both(h: Array, short: Array, targets: Array) -> tuple[Array, Array]:
        one, other = model.project(h), model.project(short)
        return _cross_entropy(one, targets), _cross_entropy(other, targets)

    long_losses, short_losses = _by_pieces(
        both, tokens.shape, model.vocab_size, model.max_logits // 2, h, short, targets.reshape(-1)
    )
    return long_losses, short_losses, jnp.mean((jax.lax.stop_gradient(h) - short) ** 2)


def exit_losses(
    model: LanguageModel,
    tokens: Int[Array, "*batch seq"],
    targets: Int[Array, "*batch seq"],
    *,
    key: PRNGKeyArray | None = None,
    edges: Float[Array, " edges"] | None = None,
) -> tuple[Float[Array, "*batch seq"], Float[Array, "*batch seq"], Float[Array, "*batch seq"]]:
    """For a model with an exit gate, at every token: the cross-entropy expected over exits, the
    entropy of the exit distribution, and the cross-entropy after the last step."""
    h = model.readings(tokens, key=key, edges=edges)
    assert model.exit_gate is not None
    log_p = exit_log_probabilities(jax.vmap(model.exit_gate)(h)[..., 0])
    shape, steps = tokens.shape, h.shape[0]

    def entropies(h: Array, targets: Array) -> Array:
        return _cross_entropy(model.project(h), targets)

    each = _by_pieces(
        entropies,
        (steps, *shape),
        model.vocab_size,
        model.max_logits,
        h.reshape(-1, model.d_model),
        jnp.tile(targets.reshape(-1), steps),
    )
    log_p = log_p.reshape(steps, *shape)
    p = jnp.exp(log_p)
    return jnp.sum(p * each, axis=0), -jnp.sum(p * log_p, axis=0), each[-1]


def exit_log_probabilities(
    gates: Float[Array, "depth rows"],
) -> Float[Array, "depth rows"]:
    """log p_i = log lambda_i + sum_{j<i} log(1 - lambda_j), lambda the sigmoid of the gate; what is
    left at the last step leaves there."""
    stay = jnp.cumsum(jax.nn.log_sigmoid(-gates[:-1]), axis=0)
    before = jnp.concatenate([jnp.zeros_like(gates[:1]), stay])
    leave = jnp.concatenate([jax.nn.log_sigmoid(gates[:-1]), jnp.zeros_like(gates[:1])])
    return before + leave


def token_losses_and_divergences(
    model: LanguageModel,
    teacher: LanguageModel,
    tokens: Int[Array, "*batch seq"],
    targets: Int[Array, "*batch seq"],
    *,
    temperature: float,
    key: PRNGKeyArray | None = None,
) -> tuple[Float[Array, "*batch seq"], Float[Array, "*batch seq"]]:
    """As `token_losses`, and how far the model is from a teacher: KL(p_teacher || p) of the
    predictions at a temperature, at every token, in nats."""
    h, given = _last_states(model, tokens, key, None), _last_states(teacher, tokens, None, None)

    def both(h: Array, given: Array, targets: Array) -> tuple[Array, Array]:
        logits = model.project(h)
        here = jax.nn.log_softmax(logits / temperature)
        there = jax.nn.log_softmax(teacher.project(given) / temperature)
        divergences = jnp.sum(jnp.exp(there) * (there - here), axis=-1)
        return _cross_entropy(logits, targets), divergences

    return _by_pieces(
        both, tokens.shape, model.vocab_size, model.max_logits // 2, h, given, targets.reshape(-1)
    )


def _last_states(
    model: LanguageModel,
    tokens: Int[Array, "*batch seq"],
    key: PRNGKeyArray | None,
    edges: Float[Array, " edges"] | None,
) -> Float[Array, "rows d_model"]:
    return model.norm.at(1.0)(model.integrate(tokens, key=key, edges=edges).x)


def _by_pieces(
    function: Callable[..., Any],
    shape: tuple[int, ...],
    vocab_size: int,
    max_logits: int,
    *arrays: Array,
) -> Any:
    """`function(*arrays)`, rows to rows, a piece along the sequence at a time; in `shape`."""
    seq = shape[-1]
    batch = arrays[0].shape[0] // seq
    pieces = num_pieces(batch, seq, vocab_size, max_logits)
    if pieces == 1:
        return jax.tree.map(lambda rows: rows.reshape(shape), function(*arrays))

    length = -(-seq // pieces)
    padding = ((0, 0), (0, pieces * length - seq))

    def cut(rows: Array) -> Array:
        """`rows` as pieces of `length` tokens of every sequence."""
        width = rows.shape[1:]
        padded = jnp.pad(rows.reshape(batch, seq, *width), (*padding, *((0, 0),) * len(width)))
        each = jnp.moveaxis(padded.reshape(batch, pieces, length, *width), 1, 0)
        return each.reshape(pieces, batch * length, *width)

    def join(made: Array) -> Array:
        whole = jnp.moveaxis(made.reshape(pieces, batch, length), 0, 1).reshape(batch, -1)
        return whole[:, :seq].reshape(shape)

    piece = jax.checkpoint(lambda each: function(*each))
    return jax.tree.map(join, jax.lax.map(piece, tuple(map(cut, arrays))))


def num_pieces(batch: int, seq: int, vocab_size: int, max_logits: int) -> int:
    """How many pieces along the sequence keep to `max_logits`, one token being the smallest."""
    length = max(1, min(seq, max_logits // (batch * vocab_size)))
    return -(-seq // length)


def _cross_entropy(
    logits: Float[Array, "rows vocab"], targets: Int[Array, " rows"]
) -> Float[Array, " rows"]:
    picked = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    return jax.nn.logsumexp(logits, axis=-1) - picked
