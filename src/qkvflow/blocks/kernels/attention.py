"""The core of causal attention in blocks of queries, with a backward pass of its own.

    a = softmax(q k^T / sqrt(d_head) + causal mask),  y = a v

Heads come first, so that every product reads its operands as they lie in memory. A block of
queries meets the keys up to its own end and no others: of the masked half of the scores, only what
lies within the blocks on the diagonal is computed.

- Up to `SHORT` tokens the exponentials are kept for the backward pass, and the blocks are written
  out one after another.
- Beyond, one pair of blocks is taken at a time (Rabe and Staats 2021; FlashAttention, Dao et al.
  2022): the sums of exponentials are carried along, and the backward pass makes the scores again
  from one number for every query. Memory grows linearly with the length. On one CPU sequences take
  turns, so that the scores of a pair stay in the cache.

Scores, sums and gradients are accumulated in float32, products take the type of their input. On a
GPU, cuDNN's fused attention is asked for where it exists: 16-bit inputs, heads of at most 128.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from qkvflow.blocks.kernels.choice import plain

Heads = Float[Array, "batch seq heads d_head"]
KVHeads = Float[Array, "batch seq kv_heads d_head"]

SHORT = 512
"""Tokens up to which exponentials are kept: there they are not much beside what a layer keeps."""
BLOCK = 128
"""Tokens of a block in longer sequences."""
BELOW_DIAGONAL = "below_diagonal"
"""The name, in a compiled program, of a loop over pairs of blocks below the diagonal. Its trips
differ from block to block: (blocks - 1) / 2 on average."""


def attend(q: Heads, k: KVHeads, v: KVHeads) -> Heads:
    """Causal attention of whole sequences; several query heads may share a key and value head."""
    if on_cudnn(q):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
    if plain():
        return plain_attend(q, k, v)
    batch, seq, heads, d_head = q.shape
    kv_heads = k.shape[2]
    grouped = q.reshape(batch, seq, kv_heads, heads // kv_heads, d_head).transpose(0, 2, 3, 1, 4)
    mixed = _core(grouped, k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3))
    return mixed.transpose(0, 3, 1, 2, 4).reshape(batch, seq, heads, d_head)


def plain_attend(q: Heads, k: KVHeads, v: KVHeads) -> Heads:
    """The definition, by way of the library."""
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def on_cudnn(q: Heads) -> bool:
    """Whether cuDNN has a fused attention for such heads here."""
    small = q.dtype in (jnp.bfloat16, jnp.float16)
    return small and jax.default_backend() == "gpu" and q.shape[-1] % 8 == 0 and q.shape[-1] <= 128


# Inside: q is `batch kv_heads groups seq d_head`, k and v are `batch kv_heads seq d_head`. A block
# of queries has the groups one after another as rows, so that one product serves them all.


def _dot(a: Array, b: Array, over: tuple[int, int]) -> Array:
    """Matrices of the last two axes, summed over the given one of each, in float32."""
    first = a.ndim - 2
    many = tuple(range(first))
    dims = (((over[0] + first,), (over[1] + first,)), (many, many))
    return lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def _turned(a: Array, b: Array) -> Array:
    """a^T b, `d_head keys`, for b^T a, which is tall and runs at half the speed. The barrier
    keeps XLA from taking one for the other."""
    return lax.optimization_barrier(_dot(a, b, (0, 0)))


@jax.custom_vjp
def _core(q: Array, k: Array, v: Array) -> Array:
    return _forward(q, k, v)[0]


def _forward(q: Array, k: Array, v: Array) -> tuple[Array, Any]:
    return (_short_forward if q.shape[3] <= SHORT else _long_forward)(q, k, v)


def _backward(kept: Any, g: Array) -> tuple[Array, Array, Array]:
    return (_short_backward if g.shape[3] <= SHORT else _long_backward)(kept, g)


_core.defvjp(_forward, _backward)


def _blocks(seq: int) -> list[tuple[int, int]]:
    """Where blocks of queries begin and end in a short sequence: two, more where it is longer."""
    if seq < 64:
        return [(0, seq)]
    size = min(128, -(-seq // 2))
    return [(start, min(start + size, seq)) for start in range(0, seq, size)]


def _rows_of(x: Array, start: int, end: int) -> Array:
    """A block of queries with its groups as rows."""
    batch, kv_heads, groups, _, d_head = x.shape
    return x[:, :, :, start:end].reshape(batch, kv_heads, groups * (end - start), d_head)


def _groups_of(x: Array, groups: int) -> Array:
    batch, kv_heads, rows, width = x.shape
    return x.reshape(batch, kv_heads, groups, rows // groups, width)


def _mask(groups: int, start: int, end: int) -> Array:
    """0 where a query of the block may look, minus infinity where not."""
    seen = jnp.arange(start, end)[:, None] >= jnp.arange(end)[None]
    return jnp.tile(jnp.where(seen, 0.0, -jnp.inf), (groups, 1))


def _short_forward(q: Array, k: Array, v: Array) -> tuple[Array, Any]:
    groups, seq, d_head = q.shape[2:]
    scaled = q * jnp.asarray(d_head**-0.5, q.dtype)
    mixed, kept = [], []
    for start, end in _blocks(seq):
        scores = _dot(_rows_of(scaled, start, end), k[:, :, :end], (1, 1))
        scores = scores + _mask(groups, start, end)[None, None]
        weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
        inverse = 1.0 / jnp.sum(weights, axis=-1, keepdims=True)
        weights = weights.astype(v.dtype)
        y = _dot(weights, v[:, :, :end], (1, 0)) * inverse
        mixed.append(_groups_of(y.astype(q.dtype), groups))
        kept.append((weights, inverse))
    y = jnp.concatenate(mixed, axis=3)
    return y, (q, k, v, y, kept)


def _short_backward(kept: Any, g: Array) -> tuple[Array, Array, Array]:
    q, k, v, y, blocks = kept
    groups, seq, d_head = q.shape[2:]
    scale = jnp.asarray(d_head**-0.5, q.dtype)
    grad_q, grad_k, grad_v = [], [], []
    for (start, end), (weights, inverse) in zip(_blocks(seq), blocks, strict=True):
        # The sum that divides the exponentials is taken into the gradient, which is smaller.
        up = _rows_of(g, start, end).astype(jnp.float32) * inverse
        mean = jnp.sum(up * _rows_of(y, start, end), axis=-1, keepdims=True)
        up = up.astype(v.dtype)
        back = weights * (_dot(up, v[:, :, :end], (1, 1)) - mean)
        back = back.astype(k.dtype)
        part = _dot(back, k[:, :, :end], (1, 0)) * scale.astype(jnp.float32)
        grad_q.append(_groups_of(part.astype(q.dtype), groups))
        grad_k.append(_dot(back, _rows_of(q, start, end) * scale, (0, 0)))
        grad_v.append(_dot(weights, up, (0, 0)))
    whole = _add_up(grad_k).astype(k.dtype), _add_up(grad_v).astype(v.dtype)
    return jnp.concatenate(grad_q, axis=3), *whole


def _add_up(parts: list[Array]) -> Array:
    """The sum of arrays that all begin at the first key and end later and later."""
    total, pieces, start = parts[::-1], [], 0
    for end in [part.shape[2] for part in parts]:
        pieces.append(sum(part[:, :, start:end] for part in total if part.shape[2] >= end))
        start = end
    return jnp.concatenate(pieces, axis=2)


# Long sequences, each by itself: q is `kv_heads groups seq d_head`, k and v are `kv_heads seq
# d_head`. Blocks are stacked along a first axis, `block kv_heads rows d_head`.


def _in_turn(function: Callable[..., Any], *args: Any) -> Any:
    """`function` of each sequence: one after another on one CPU, elsewhere together."""
    if jax.default_backend() != "cpu" or jax.device_count() > 1:
        return jax.vmap(function)(*args)
    return lax.map(lambda each: function(*each), args)


def _pad(x: Array) -> Array:
    """With zeros up to whole blocks: no query looks at what comes after it."""
    widths = [(0, 0)] * x.ndim
    widths[-2] = (0, -x.shape[-2] % BLOCK)
    return jnp.pad(x, widths)


def _stack_queries(x: Array) -> Array:
    kv_heads, groups, seq, d_head = x.shape
    split = x.reshape(kv_heads, groups, seq // BLOCK, BLOCK, d_head)
    return split.transpose(2, 0, 1, 3, 4).reshape(-1, kv_heads, groups * BLOCK, d_head)


def _unstack_queries(x: Array, groups: int) -> Array:
    count, kv_heads, _, d_head = x.shape
    split = x.reshape(count, kv_heads, groups, BLOCK, d_head).transpose(1, 2, 0, 3, 4)
    return split.reshape(kv_heads, groups, count * BLOCK, d_head)


def _stack_keys(x: Array) -> Array:
    kv_heads, seq, d_head = x.shape
    return x.reshape(kv_heads, seq // BLOCK, BLOCK, d_head).transpose(1, 0, 2, 3)


def _unstack_turned(x: Array) -> Array:
    """Keys of blocks of which each is transposed."""
    count, kv_heads, d_head, _ = x.shape
    return x.transpose(1, 0, 3, 2).reshape(kv_heads, count * BLOCK, d_head)


def _stacked(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Blocks of scaled queries, keys and values."""
    scaled = q * jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
    return _stack_queries(_pad(scaled)), _stack_keys(_pad(k)), _stack_keys(_pad(v))


Sums = tuple[Array, Array, Array]


def _long_forward(q: Array, k: Array, v: Array) -> tuple[Array, Any]:
    y, *rest = _in_turn(_one_forward, q, k, v)
    return y, (q, k, v, *rest)


def _long_backward(kept: Any, g: Array) -> tuple[Array, Array, Array]:
    return _in_turn(_one_backward, *kept, g)


def _one_forward(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Of one sequence: the result, the same in blocks, and the logarithms of the sums."""
    groups, seq = q.shape[1:3]
    queries, keys, values = _stacked(q, k, v)
    causal = _mask(groups, 0, BLOCK)[None]

    def meet(query: Array, mask: Array | None, j: Array, sums: Sums) -> Sums:
        """Queries meet block j of the keys: sums relative to the largest score so far."""
        mixed, total, most = sums
        scores = _dot(query, keys[j], (1, 1))
        scores = scores if mask is None else scores + mask
        larger = jnp.maximum(most, jnp.max(scores, axis=-1, keepdims=True))
        weights, before = jnp.exp(scores - larger), jnp.exp(most - larger)
        mixed = mixed * before + _dot(weights.astype(v.dtype), values[j], (1, 0))
        return mixed, total * before + jnp.sum(weights, axis=-1, keepdims=True), larger

    def block(i: Array, query: Array) -> tuple[Array, tuple[Array, Array]]:
        one = jnp.zeros((*query.shape[:-1], 1), jnp.float32)
        # The block on the diagonal first: after it, every query has seen a key.
        sums = meet(query, causal, i, (jnp.zeros(query.shape, jnp.float32), one, one - jnp.inf))
        step: Callable[[Any, Sums], Sums] = partial(meet, query, None)
        with jax.named_scope(BELOW_DIAGONAL):
            mixed, total, most = lax.fori_loop(0, i, step, sums)
        return i + 1, ((mixed / total).astype(q.dtype), most + jnp.log(total))

    _, (mixed, log_sums) = lax.scan(block, jnp.int32(0), queries)
    return _unstack_queries(mixed, groups)[:, :, :seq], mixed, log_sums


def _one_backward(
    q: Array, k: Array, v: Array, mixed: Array, log_sums: Array, g: Array
) -> tuple[Array, Array, Array]:
    groups, seq, d_head = q.shape[1:]
    queries, keys, values = _stacked(q, k, v)
    ups = _stack_queries(_pad(g))
    means = jnp.sum(ups.astype(jnp.float32) * mixed, axis=-1, keepdims=True)
    causal = _mask(groups, 0, BLOCK)[None]

    def meet(key: Array, value: Array, mask: Array | None, i: Array, grads: Any) -> Any:
        """Block i of the queries meets a block of keys."""
        grad_q, grad_k, grad_v = grads
        scores = _dot(queries[i], key, (1, 1))
        scores = scores if mask is None else scores + mask
        weights = jnp.exp(scores - log_sums[i])
        back = (weights * (_dot(ups[i], value, (1, 1)) - means[i])).astype(k.dtype)
        grad_v = grad_v + _turned(ups[i], weights.astype(v.dtype))
        grad_k = grad_k + _turned(queries[i], back)
        return grad_q.at[i].add(_dot(back, key, (1, 0))), grad_k, grad_v

    def block(carry: tuple[Array, Array], pair: tuple[Array, Array]) -> Any:
        j, grad_q = carry
        none = jnp.zeros((len(k), d_head, BLOCK), jnp.float32)
        grads = meet(*pair, causal, j, (grad_q, none, none))
        with jax.named_scope(BELOW_DIAGONAL):
            grad_q, *rest = lax.fori_loop(j + 1, len(queries), partial(meet, *pair, None), grads)
        return (j + 1, grad_q), tuple(rest)

    start = (jnp.int32(0), jnp.zeros(queries.shape, jnp.float32))
    (_, grad_q), (grad_k, grad_v) = lax.scan(block, start, (keys, values))
    grad_q = _unstack_queries(grad_q * d_head**-0.5, groups)[:, :, :seq]
    grad_k, grad_v = (_unstack_turned(each)[:, :seq] for each in (grad_k, grad_v))
    return grad_q.astype(q.dtype), grad_k.astype(k.dtype), grad_v.astype(v.dtype)
