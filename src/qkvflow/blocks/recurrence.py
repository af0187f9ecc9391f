"""The linear time-invariant recurrence of a diagonal state space layer.

    h_k = a h_{k-1} + u_k,    a = exp(delta A) in (0, 1],    k = 1 .. seq

after Gu, Gupta, Goel and Re, "On the Parameterization and Initialization of Diagonal State
Space Models" (S4D, 2022). Symbols:

    log_decay   delta A, one number <= 0 per state          (A: diagonal, delta: step)
    u           delta B x_k, already projected to the state
    initial     h_0
    h, final    h_1 .. h_seq and h_seq

The projections into and out of the state (delta B x before, C h + D x after) are ordinary matrix
products over rows and belong to the caller; only the recurrence itself mixes positions.

Three evaluations of the same thing: `scan_states` is the definition, `chunked_states` is for
training, `step_state` is for generation. The state is accumulated in float32 or wider whatever
the dtype of `u`; `h` comes back in the dtype of `u`, `final` in that of the accumulation.

Differences from S4D: the state is real (the layer's A is), the input is mixed by a full B before
it reaches the state, and delta is per state, so that discretisation is the caller's business.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

CHUNK = 64


def _accumulator(*arrays: Array) -> jnp.dtype:
    return jnp.result_type(jnp.float32, *arrays)


def step_state(
    log_decay: Float[Array, " state"],
    u: Float[Array, "batch state"],
    state: Float[Array, "batch state"],
) -> Float[Array, "batch state"]:
    """The state after one more position."""
    dtype = _accumulator(log_decay, u, state)
    decay = jnp.exp(log_decay.astype(dtype))
    return decay[None, :] * state.astype(dtype) + u.astype(dtype)


def scan_states(
    log_decay: Float[Array, " state"],
    u: Float[Array, "batch seq state"],
    initial: Float[Array, "batch state"],
) -> tuple[Float[Array, "batch seq state"], Float[Array, "batch state"]]:
    """All states, one position at a time: the reference twin of `chunked_states`."""
    dtype = _accumulator(log_decay, u, initial)

    def body(state, u_k):
        state = step_state(log_decay, u_k, state)
        return state, state

    final, h = lax.scan(body, initial.astype(dtype), jnp.swapaxes(u, 0, 1))
    return jnp.swapaxes(h, 0, 1).astype(u.dtype), final


def chunked_states(
    log_decay: Float[Array, " state"],
    u: Float[Array, "batch seq state"],
    initial: Float[Array, "batch state"],
    *,
    chunk: int = CHUNK,
) -> tuple[Float[Array, "batch seq state"], Float[Array, "batch state"]]:
    """All states by matrix products over chunks of positions; linear in `seq`.

    Within a chunk the recurrence is a lower-triangular Toeplitz matrix per state. The states at
    the ends of the chunks obey the same recurrence with the decay of a whole chunk, so they are
    found by the same function on a sequence `chunk` times shorter.
    """
    if chunk < 2:
        raise ValueError(f"chunk must be at least 2, got {chunk}")
    dtype = _accumulator(log_decay, u, initial)
    h = _states(chunk, log_decay.astype(dtype), u.astype(dtype), initial.astype(dtype))
    return h.astype(u.dtype), h[:, -1]


def _states(chunk, log_decay, u, initial):
    batch, seq, state = u.shape
    length = min(chunk, seq)
    count = -(-seq // length)
    u = jnp.pad(u, ((0, 0), (0, count * length - seq), (0, 0)))
    u = u.reshape(batch, count, length, state)

    position = jnp.arange(length)
    lag = position[:, None] - position[None, :]
    # The exponent is clipped before exp, not masked after: log_decay * lag would overflow above
    # the diagonal, and an overflow that is masked later still turns the gradient into nan.
    power = jnp.exp(log_decay[:, None, None] * jnp.maximum(lag, 0)[None])
    kernel = jnp.where((lag >= 0)[None], power, 0.0)

    if count == 1:
        entering = initial[:, None]
    else:
        weight = jnp.exp(log_decay[None, :] * (length - 1 - position)[:, None])
        last = jnp.sum(u[:, :-1] * weight[None, None], axis=2)
        ends = _states(chunk, log_decay * length, last, initial)
        entering = jnp.concatenate([initial[:, None], ends], axis=1)
    # What enters a chunk acts like one more input at its first position.
    u = u.at[:, :, 0].add(jnp.exp(log_decay)[None, None] * entering)
    h = jnp.einsum("nij,bcjn->bcin", kernel, u)
    return h.reshape(batch, count * length, state)[:, :seq]


def chunked_flops_per_token(state: int, seq: int, *, chunk: int = CHUNK) -> float:
    """Floating point operations per token of `chunked_states` forward (a multiply-add is two)."""
    length = min(chunk, seq)
    count = -(-seq // length)
    flops = 2.0 * count * length * length * state
    if count > 1:
        flops += 2.0 * count * length * state
        flops += (count - 1) * chunked_flops_per_token(state, count - 1, chunk=chunk)
    return flops / seq
