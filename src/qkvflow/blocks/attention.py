"""Causal multi-head attention, in GPT-2 and Llama flavours.

    q, k, v = x W_qkv + b,  a = softmax(q k^T / sqrt(d_head) + causal mask),  y = a v W_out + b

Vaswani et al. 2017. With `num_kv_heads < num_heads` several query heads share a key and value
head (grouped-query attention, Ainslie et al. 2023). With a rotary base, queries and keys are
rotated by their position (RoPE, Su et al. 2021; the half-split convention of Llama).

One matrix holds queries, keys and values, head after head: queries of all heads, then keys,
then values. One product and one reshape feed the attention core, which matters for speed.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from qkvflow.blocks.base import (
    AbstractAppendingMixer,
    Linear,
    Mixes,
    Rows,
    dropout,
    init_linear,
    place,
)
from qkvflow.blocks.kernels import attend
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.registry import MIXERS

Heads = Float[Array, "batch seq heads d_head"]
KVHeads = Float[Array, "batch seq kv_heads d_head"]


class KVCache(eqx.Module):
    """Keys and values of the tokens so far, in place for `length` tokens.

    Heads come first, so that products over positions read them as they lie in memory.
    """

    keys: Float[Array, "batch kv_heads length d_head"]
    values: Float[Array, "batch kv_heads length d_head"]


def rotate(x: Heads, positions: Int[Array, " seq"], base: float) -> Heads:
    """Rotate the pairs (i, i + d_head/2) of each head by position * base^(-2i/d_head)."""
    half = x.shape[-1] // 2
    frequencies = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions.astype(jnp.float32)[:, None] * frequencies[None]
    cos, sin = jnp.cos(angles)[None, :, None, :], jnp.sin(angles)[None, :, None, :]
    first, second = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


def attend_with_dropout(q: Heads, k: KVHeads, v: KVHeads, rate: float, key: PRNGKeyArray) -> Heads:
    """The attention core with dropout on the probabilities, which the fused core lacks."""
    groups = q.shape[2] // k.shape[2]
    k, v = jnp.repeat(k, groups, axis=2), jnp.repeat(v, groups, axis=2)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / q.shape[-1] ** 0.5
    mask = jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool))
    scores = jnp.where(mask[None, None], scores, -jnp.inf)
    weights = dropout(jax.nn.softmax(scores, axis=-1), rate, key).astype(v.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def attend_to_past(q: Heads, past: KVCache, new: KVCache, start: int | Int[Array, ""]) -> Heads:
    """The attention core over the first `start` slots of `past` and, causally, over `new`.

    Two products instead of one over a cache with `new` written into it, which would be copied.
    """
    batch, seq, heads, d_head = q.shape
    kv_heads, length = past.keys.shape[1:3]
    q = q.reshape(batch, seq, kv_heads, heads // kv_heads, d_head)

    def scores(keys: Array, mask: Array) -> Array:
        each = jnp.einsum(
            "bskgd,bktd->bkgst", q, keys.astype(q.dtype), preferred_element_type=jnp.float32
        )
        return jnp.where(mask[None, None, None], each / d_head**0.5, -jnp.inf)

    seen = jnp.broadcast_to(jnp.arange(length)[None] < start, (seq, length))
    causal = jnp.tril(jnp.ones((seq, seq), bool))
    both = jnp.concatenate([scores(past.keys, seen), scores(new.keys, causal)], axis=-1)
    weights = jax.nn.softmax(both, axis=-1).astype(q.dtype)

    def mix(weights: Array, values: Array) -> Array:
        return jnp.einsum("bkgst,bktd->bskgd", weights, values.astype(q.dtype))

    mixed = mix(weights[..., :length], past.values) + mix(weights[..., length:], new.values)
    return mixed.reshape(batch, seq, heads, d_head)


def attend_to_cache(q: Heads, cache: KVCache, start: int | Int[Array, ""]) -> Heads:
    """As `attend_to_past`, over a cache that the new tokens are in already."""
    batch, seq, heads, d_head = q.shape
    kv_heads, length = cache.keys.shape[1:3]
    q = q.reshape(batch, seq, kv_heads, heads // kv_heads, d_head)
    keys, values = cache.keys.astype(q.dtype), cache.values.astype(q.dtype)
    scores = jnp.einsum("bskgd,bktd->bkgst", q, keys, preferred_element_type=jnp.float32)
    seen = jnp.arange(length)[None] <= start + jnp.arange(seq)[:, None]
    scores = jnp.where(seen[None, None, None], scores / d_head**0.5, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    mixed = jnp.einsum("bkgst,bktd->bskgd", weights, values)
    return mixed.reshape(batch, seq, heads, d_head)


def _as_cache(k: KVHeads, v: KVHeads, dtype: Any) -> KVCache:
    return KVCache(jnp.swapaxes(k, 1, 2).astype(dtype), jnp.swapaxes(v, 1, 2).astype(dtype))


class Attention(AbstractAppendingMixer):
    mixes: ClassVar[Mixes] = "tokens"

    qkv: Linear
    out: Linear
    num_heads: int = eqx.field(static=True)
    num_kv_heads: int = eqx.field(static=True)
    rotary_base: float | None = eqx.field(static=True, default=None)
    dropout: float = eqx.field(static=True, default=0.0)

    def _heads(self, x: Float[Array, "rows d_model"], rows: Rows) -> tuple[Heads, KVHeads, KVHeads]:
        total = self.num_heads + 2 * self.num_kv_heads
        packed = self.qkv(x)
        packed = packed.reshape(rows.batch, rows.seq, total, packed.shape[-1] // total)
        q = packed[:, :, : self.num_heads]
        k = packed[:, :, self.num_heads : self.num_heads + self.num_kv_heads]
        v = packed[:, :, self.num_heads + self.num_kv_heads :]
        if self.rotary_base is not None:
            q = rotate(q, rows.positions, self.rotary_base)
            k = rotate(k, rows.positions, self.rotary_base)
        return q, k, v

    def __call__(
        self, x: Float[Array, "rows d_model"], rows: Rows, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "rows d_model"]:
        q, k, v = self._heads(x, rows)
        if key is not None and self.dropout > 0.0:
            mixed = attend_with_dropout(q, k, v, self.dropout, key)
        else:
            mixed = attend(q, k, v)
        return self.out(mixed.reshape(rows.batch * rows.seq, -1))

    def init_state(self, batch: int, length: int, dtype: jnp.dtype) -> KVCache:
        d_head = self.out.weight.shape[-2] // self.num_heads
        shape = (batch, self.num_kv_heads, length, d_head)
        return KVCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

    def extend(
        self, x: Float[Array, "rows d_model"], rows: Rows, state: KVCache
    ) -> tuple[Float[Array, "rows d_model"], KVCache]:
        q, k, v = self._heads(x, rows)
        new = _as_cache(k, v, state.keys.dtype)
        state = jax.tree.map(lambda old, each: place(old, each, rows.start), state, new)
        if isinstance(rows.start, int) and rows.start == 0:
            mixed = attend(q, k, v)
        else:
            mixed = attend_to_cache(q, state, rows.start)
        return self.out(mixed.reshape(rows.batch * rows.seq, -1)), state

    def append(
        self, x: Float[Array, "rows d_model"], rows: Rows, state: KVCache
    ) -> tuple[Float[Array, "rows d_model"], KVCache]:
        q, k, v = self._heads(x, rows)
        new = _as_cache(k, v, state.keys.dtype)
        if isinstance(rows.start, int) and rows.start == 0:
            mixed = attend(q, k, v)
        else:
            mixed = attend_to_past(q, state, new, rows.start)
        return self.out(mixed.reshape(rows.batch * rows.seq, -1)), new

    def flops_per_token(self, context: int) -> int:
        width = self.out.weight.shape[-2]
        return self.qkv.flops_per_token + self.out.flops_per_token + 4 * context * width


@MIXERS.register("attention")
def init_attention(config: ModelConfig, out_scale: float, key: PRNGKeyArray) -> Attention:
    key_qkv, key_out = jax.random.split(key)
    d_model, std = config.d_model, config.init_std
    d_packed = d_model // config.num_heads * (config.num_heads + 2 * config.kv_heads)
    bias = config.bias if config.attention_bias is None else config.attention_bias
    return Attention(
        init_linear(d_model, d_packed, bias=bias, std=std, key=key_qkv, role="in_proj"),
        init_linear(d_model, d_model, bias=bias, std=std * out_scale, key=key_out, role="out_proj"),
        config.num_heads,
        config.kv_heads,
        config.rotary_base if config.positions == "rope" else None,
        config.attention_dropout,
    )
