"""The input-dependent recurrence of Mamba-2 (state space duality).

    h_k = exp(dt_k A) h_{k-1} + dt_k x_k B_k^T,    y_k = h_k C_k,    k = 1 .. seq

per head, after Dao and Gu, "Transformers are SSMs: Generalized Models and Efficient Algorithms
Through Structured State Space Duality" (2024). Symbols:

    x        [batch, seq, heads, head_dim]           X
    dt       [batch, seq, heads]      > 0            Delta, after softplus
    a        [heads]                  < 0            A, a scalar times the identity
    b, c     [batch, seq, groups, state]             B, C; a group serves heads / groups heads
    state    [batch, heads, head_dim, state]         h

The skip D x, the gate, the convolution and the norm belong to the caller.

Three evaluations of the same thing: `ssd_scan` is the definition, `ssd_chunked` is for training,
`ssd_step` is for generation. The state is accumulated in float32 or wider whatever the dtype of
`x`; `y` comes back in the dtype of `x`, the state in that of the accumulation.

Difference from the paper's listing: the sum of log decays between two positions is the difference
of two running sums kept in two parts (see `_running_sums`), where the paper sums every segment
separately to avoid cancellation.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

# By measurement on a CPU (8 heads of 64, 64 states, 1024 and 8192 positions): 32 is as fast but
# keeps twice as many states for the backward pass, 128 is slower.
CHUNK = 64


def _accumulator(*arrays: Array) -> jnp.dtype:
    return jnp.result_type(jnp.float32, *arrays)


def ssd_step(
    x: Float[Array, "batch heads head_dim"],
    dt: Float[Array, "batch heads"],
    a: Float[Array, " heads"],
    b: Float[Array, "batch groups state"],
    c: Float[Array, "batch groups state"],
    state: Float[Array, "batch heads head_dim state"],
) -> tuple[Float[Array, "batch heads head_dim"], Float[Array, "batch heads head_dim state"]]:
    """The output at one more position, and the state after it."""
    dtype = _accumulator(x, dt, a, b, c, state)
    per_group = x.shape[1] // b.shape[1]
    dt = dt.astype(dtype)
    decay = jnp.exp(dt * a.astype(dtype)[None])
    b = jnp.repeat(b.astype(dtype), per_group, axis=1)
    c = jnp.repeat(c.astype(dtype), per_group, axis=1)
    update = (dt[:, :, None] * x.astype(dtype))[:, :, :, None] * b[:, :, None, :]
    state = decay[:, :, None, None] * state.astype(dtype) + update
    y = jnp.einsum("bhpn,bhn->bhp", state, c)
    return y.astype(x.dtype), state


def ssd_scan(
    x: Float[Array, "batch seq heads head_dim"],
    dt: Float[Array, "batch seq heads"],
    a: Float[Array, " heads"],
    b: Float[Array, "batch seq groups state"],
    c: Float[Array, "batch seq groups state"],
    initial: Float[Array, "batch heads head_dim state"],
) -> tuple[Float[Array, "batch seq heads head_dim"], Float[Array, "batch heads head_dim state"]]:
    """All outputs and the last state, one position at a time: the reference twin."""
    dtype = _accumulator(x, dt, a, b, c, initial)

    def body(state, inputs):
        x_k, dt_k, b_k, c_k = inputs
        y_k, state = ssd_step(x_k, dt_k, a, b_k, c_k, state)
        return state, y_k

    inputs = tuple(jnp.swapaxes(value, 0, 1) for value in (x, dt, b, c))
    final, y = lax.scan(body, initial.astype(dtype), inputs)
    return jnp.swapaxes(y, 0, 1), final


def ssd_chunked(
    x: Float[Array, "batch seq heads head_dim"],
    dt: Float[Array, "batch seq heads"],
    a: Float[Array, " heads"],
    b: Float[Array, "batch seq groups state"],
    c: Float[Array, "batch seq groups state"],
    initial: Float[Array, "batch heads head_dim state"],
    *,
    chunk: int = CHUNK,
) -> tuple[Float[Array, "batch seq heads head_dim"], Float[Array, "batch heads head_dim state"]]:
    """All outputs and the last state by matrix products over chunks; linear in `seq`.

    Chunks follow one another in a scan whose body is recomputed in the backward pass, so that
    the [chunk, chunk] matrices of one chunk only are alive at a time.
    """
    if chunk < 1:
        raise ValueError(f"chunk must be positive, got {chunk}")
    dtype = _accumulator(x, dt, a, b, c, initial)
    batch, seq, heads, head_dim = x.shape
    groups, state = b.shape[2:]
    per_group = heads // groups
    length = min(chunk, seq)
    count = -(-seq // length)

    def split(value):
        # dt = 0 makes a padded position the identity: no decay, no input.
        value = jnp.pad(value, ((0, 0), (0, count * length - seq)) + ((0, 0),) * (value.ndim - 2))
        value = value.reshape(batch, count, length, *value.shape[2:])
        return jnp.swapaxes(value, 0, 1)

    inputs = (
        split(x.reshape(batch, seq, groups, per_group, head_dim)),
        split(dt.astype(dtype).reshape(batch, seq, groups, per_group)),
        split(b),
        split(c),
    )
    a = a.astype(dtype).reshape(groups, per_group)
    # Inside, the state axis stands before the heads: the products with the state are then single
    # matrix products over all heads of a group, on x as it lies in memory.
    initial = initial.astype(dtype).reshape(batch, groups, per_group, head_dim, state)
    initial = jnp.moveaxis(initial, -1, 2)

    @jax.checkpoint
    def body(h, inputs):
        x, dt, b, c = inputs
        y, h = _chunk(x, dt, b, c, a, h)
        return h, y

    final, y = lax.scan(body, initial, inputs)
    y = jnp.swapaxes(y, 0, 1).reshape(batch, count * length, heads, head_dim)[:, :seq]
    return y, jnp.moveaxis(final, 2, -1).reshape(batch, heads, head_dim, state)


def _chunk(x: Array, dt: Array, b: Array, c: Array, a: Array, h: Array) -> tuple[Array, Array]:
    """One chunk. Axes: batch z, group g, head of group r, positions i j, head_dim p, state n."""
    dtype = h.dtype
    length = x.shape[1]
    coarse, fine = _running_sums(dt * a[None, None])  # z i g r
    from_start = jnp.exp(coarse + fine)
    to_end = jnp.exp((coarse[:, -1:] - coarse) + (fine[:, -1:] - fine))
    coarse, fine = jnp.moveaxis(coarse, 1, -1), jnp.moveaxis(fine, 1, -1)  # z g r i
    between = coarse[..., :, None] - coarse[..., None, :]
    between += fine[..., :, None] - fine[..., None, :]
    # Masked before exp: above the diagonal the sum is positive, and an overflow that is masked
    # afterwards still turns the gradient into nan.
    causal = jnp.tril(jnp.ones((length, length), bool))
    decay = jnp.exp(jnp.where(causal[None, None, None], between, -jnp.inf))

    scores = jnp.einsum("zign,zjgn->zgij", c, b, preferred_element_type=dtype)
    mixing = (scores[:, :, None] * decay).astype(x.dtype)
    stepped = dt[..., None] * x.astype(dtype)
    y = jnp.einsum(
        "zgrij,zjgrp->zigrp", mixing, stepped.astype(x.dtype), preferred_element_type=dtype
    )
    carried = jnp.einsum("zign,zgnrp->zigrp", c.astype(dtype), h)
    y += from_start[..., None] * carried

    update = jnp.einsum("zjgn,zjgrp->zgnrp", b.astype(dtype), to_end[..., None] * stepped)
    h = from_start[:, -1][:, :, None, :, None] * h + update
    return y.astype(x.dtype), h


def _running_sums(log_decay: Array) -> tuple[Array, Array]:
    """Running sums over axis 1, as a coarse and a fine part whose differences do not cancel.

    After strong decay a plain running sum is large, and the difference of two such sums has lost
    the digits of the weak decay between them. The coarse parts are multiples of 1/256 small enough
    to be summed and subtracted exactly; the fine parts are below 1/512 each. Decay stronger than
    exp(-100) is no different from exp(-100) in float32: both leave nothing.
    """
    log_decay = jnp.maximum(log_decay, -100.0)
    coarse = lax.stop_gradient(jnp.round(log_decay * 256.0) / 256.0)
    return jnp.cumsum(coarse, axis=1), jnp.cumsum(log_decay - coarse, axis=1)


def chunked_flops_per_token(
    heads: int, head_dim: int, state: int, groups: int, seq: int, *, chunk: int = CHUNK
) -> float:
    """Floating point operations per token of `ssd_chunked` forward (a multiply-add is two).

    The matrix products only: scores C B^T per group, their product with x, and the two products
    with the state per head. Whole chunks are counted, as they are computed.
    """
    length = min(chunk, seq)
    padded = -(-seq // length) * length
    within = 2.0 * length * (groups * state + heads * head_dim)
    between = 4.0 * heads * head_dim * state
    return (within + between) * padded / seq
