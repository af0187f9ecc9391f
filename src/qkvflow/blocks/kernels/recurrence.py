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

Two evaluations of the same thing: `chunked_states` is for training, `step_state` for generation.
The state is accumulated in float32 or wider whatever the dtype of `u`; `h` comes back in the dtype
of `u`, `final` in that of the accumulation.

Differences from S4D: the state is real (the layer's A is), the input is mixed by a full B before
it reaches the state, and delta is per state, so that discretisation is the caller's business.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

# Both chosen by measurement on a CPU (64 states, 1024 and 8192 positions, forward and backward).
# Products for every position, without segments, cost about a quarter more for a whole layer: the
# state is diagonal, so each product is small and needs its operands transposed.
SEGMENT = 16
CHUNK = 32


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


def chunked_states(
    log_decay: Float[Array, " state"],
    u: Float[Array, "batch seq state"],
    initial: Float[Array, "batch state"],
    *,
    segment: int = SEGMENT,
    chunk: int = CHUNK,
) -> tuple[Float[Array, "batch seq state"], Float[Array, "batch state"]]:
    """All states at once, linear in `seq` and with no loop over positions.

    Segments of a few positions, all of them together, take a few multiply-adds. The states at the
    ends of the segments obey the same recurrence with the decay of a whole segment; they are
    `segment` times fewer and found by matrix products over chunks of `chunk` segments.

    The states solve a linear system, h_k - a h_{k-1} = u_k, and are differentiated as its
    solution: the gradient is the same recurrence backwards, and needs nothing kept but h.
    """
    if segment < 1 or chunk < 2:
        raise ValueError(f"need segment >= 1 and chunk >= 2, got {segment} and {chunk}")
    dtype = _accumulator(log_decay, u, initial)
    log_decay = log_decay.astype(dtype)
    decay = jnp.exp(log_decay)
    inputs = u.astype(dtype).at[:, 0].add(decay[None] * initial.astype(dtype))

    def residual(h: Array) -> Array:
        before = jnp.pad(h, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        return h - decay[None, None] * before

    def solve(_: object, u: Array) -> Array:
        return _segments(log_decay, u, segment, chunk)

    def solve_backwards(_: object, u: Array) -> Array:
        return jnp.flip(_segments(log_decay, jnp.flip(u, 1), segment, chunk), 1)

    h = lax.custom_linear_solve(residual, inputs, solve, solve_backwards)
    return h.astype(u.dtype), h[:, -1]


def _segments(log_decay: Array, u: Array, segment: int, chunk: int) -> Array:
    """All states from h_0 = 0, by segments and what enters them."""
    seq = u.shape[1]
    segments = _split(u, segment)
    count, length = segments.shape[1:3]
    decay = jnp.exp(log_decay)[None, None]
    local = [segments[:, :, 0]]
    for k in range(1, length):
        local.append(decay * local[-1] + segments[:, :, k])
    h = jnp.stack(local, axis=2)
    if count > 1:
        entering = _products(log_decay * length, local[-1][:, :-1], chunk)
        fading = jnp.exp(log_decay[None] * jnp.arange(1, length + 1)[:, None])
        h += _after_first(entering)[:, :, None] * fading[None, None]
    return _join(h, seq)


def _products(log_decay: Array, u: Array, chunk: int) -> Array:
    """All states from h_0 = 0, by one lower-triangular Toeplitz matrix per state and chunk.

    What enters a chunk follows the same recurrence again, over a sequence `chunk` times shorter.
    """
    seq = u.shape[1]
    u = _split(u, chunk)
    count, length = u.shape[1:3]
    position = jnp.arange(length)
    if count > 1:
        fading = jnp.exp(log_decay[None] * (length - 1 - position)[:, None])
        ends = jnp.sum(u[:, :-1] * fading[None, None], axis=2)
        entering = _after_first(_products(log_decay * length, ends, chunk))
        # What enters a chunk acts like one more input at its first position.
        u = u.at[:, :, 0].add(jnp.exp(log_decay)[None, None] * entering)

    lag = position[:, None] - position[None, :]
    # Clipped before exp: above the diagonal the exponent is positive and may overflow.
    power = jnp.exp(log_decay[:, None, None] * jnp.maximum(lag, 0)[None])
    kernel = jnp.where((lag >= 0)[None], power, 0.0)
    return _join(jnp.einsum("nij,bcjn->bcin", kernel, u), seq)


def _after_first(entering: Array) -> Array:
    """What enters each part but the first, which nothing enters."""
    return jnp.pad(entering, ((0, 0), (1, 0), (0, 0)))


def _split(u: Array, length: int) -> Array:
    """[batch, seq, state] to [batch, count, length, state], zeros at the end.

    Zeros added after the last position change no state before them.
    """
    batch, seq, state = u.shape
    length = min(length, seq)
    count = -(-seq // length)
    u = jnp.pad(u, ((0, 0), (0, count * length - seq), (0, 0)))
    return u.reshape(batch, count, length, state)


def _join(h: Array, seq: int) -> Array:
    batch, count, length, state = h.shape
    return h.reshape(batch, count * length, state)[:, :seq]


def chunked_flops_per_token(
    state: int, seq: int, *, segment: int = SEGMENT, chunk: int = CHUNK
) -> float:
    """Floating point operations per token of `chunked_states` forward.

    A multiply-add is two. Whole chunks are counted, as they are computed; the exponentials of the
    decays, which do not grow with `seq`, are not.
    """
    length = min(segment, seq)
    count = -(-seq // length)
    flops = (2.0 * (length - 1) * count + 2.0) * state
    remaining = count - 1
    if remaining:
        flops += 2.0 * length * count * state
    while remaining > 0:
        length = min(chunk, remaining)
        count = -(-remaining // length)
        flops += 2.0 * length * length * count * state
        remaining = count - 1
        flops += 2.0 * length * remaining * state
    return flops / seq
