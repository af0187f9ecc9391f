"""Causal multi-head attention, in GPT-2 and Llama flavours.

    q, k, v = x W_qkv + b,  a = softmax(q k^T / sqrt(d_head) + causal mask),  y = a v W_out + b

Vaswani et al. 2017. With `num_kv_heads < num_heads` several query heads share a key and value
head (grouped-query attention, Ainslie et al. 2023). With rotary positions, queries and keys are
rotated by their position (RoPE, Su et al. 2021; the half-split convention of Llama), all of a head
or its first channels (as in GPT-NeoX). With norms, queries and keys of each head are normalised
before that, with one scale for all heads (as in Qwen3).

Values may be mixed with those of the first layer (value residuals), which `Rows` carries: they are
a function of a token's embedding, so a cache holds them already mixed.

One matrix holds queries, keys and values, head after head: queries of all heads, then keys,
then values. One product and one reshape feed the attention core, which matters for speed.
"""

import math
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from qkvflow.blocks.base import (
    AbstractAppendingMixer,
    AbstractNorm,
    AbstractWeights,
    Block,
    Branch,
    Linear,
    Mixes,
    Role,
    Rows,
    dropout,
    init_linear,
)
from qkvflow.blocks.kernels import attend
from qkvflow.blocks.kernels.norm import init_norm
from qkvflow.zoo.config import ModelConfig, parse_rotary_scaling
from qkvflow.zoo.registry import MIXERS

MUP_HEAD = 16
"""Channels of a head at which mup, whose scores are q k^T sqrt(MUP_HEAD) / d_head, is as usual."""

Heads = Float[Array, "batch seq heads d_head"]
KVHeads = Float[Array, "batch seq kv_heads d_head"]


class KVCache(eqx.Module):
    """Keys and values of the tokens so far, in place for `length` tokens.

    All heads of a sequence, then those of the next, so that products over positions read them as
    they lie in memory. One axis and not two: XLA would make one of both for the products, and
    copies a cache that is written in another shape than it is read in.
    """

    keys: Float[Array, "batch_kv_heads length d_head"]
    values: Float[Array, "batch_kv_heads length d_head"]


class Rotary(NamedTuple):
    """Which channels are rotated how fast: `size` of each head, by base^(-2i/size), scaled."""

    size: int
    base: float = 10000.0
    scaling: str = "none"

    def frequencies(self) -> Float[Array, " half"]:
        half = self.size // 2
        plain = self.base ** (-jnp.arange(half, dtype=jnp.float32) / half)
        kind, numbers = parse_rotary_scaling(self.scaling)
        if kind == "none":
            return plain
        if kind == "linear":
            return plain / numbers[0]
        # Llama 3: slow ones by the factor, fast ones not at all, between them by interpolation.
        factor, low, high, original = numbers
        turns = original * plain / (2.0 * math.pi)
        kept = jnp.clip((turns - low) / (high - low), 0.0, 1.0)
        return plain * ((1.0 - kept) / factor + kept)


def rotate(x: Heads, positions: Int[Array, " seq"], rotary: Rotary) -> Heads:
    """Rotate the pairs (i, i + size/2) of each head by position times frequency."""
    half = rotary.size // 2
    angles = positions.astype(jnp.float32)[:, None] * rotary.frequencies()[None]
    cos, sin = jnp.cos(angles)[None, :, None, :], jnp.sin(angles)[None, :, None, :]
    first = x[..., :half].astype(jnp.float32)
    second = x[..., half : rotary.size].astype(jnp.float32)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    rotated = rotated.astype(x.dtype)
    if rotary.size == x.shape[-1]:
        return rotated
    return jnp.concatenate([rotated, x[..., rotary.size :]], axis=-1)


def _normalise(x: Heads, norm: AbstractNorm) -> Heads:
    """Each head of each token by itself."""
    return norm(x.reshape(-1, x.shape[-1])).reshape(x.shape)


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
    seq, length = q.shape[1], past.keys.shape[1]
    seen = jnp.broadcast_to(jnp.arange(length)[None] < start, (seq, length))
    causal = jnp.tril(jnp.ones((seq, seq), bool))
    scores = [_scores(q, past.keys, seen), _scores(q, new.keys, causal)]
    weights = jax.nn.softmax(jnp.concatenate(scores, axis=-1), axis=-1).astype(q.dtype)
    before, now = jnp.split(weights, [length], axis=-1)
    return _mixed(before, past.values, q.shape) + _mixed(now, new.values, q.shape)


def attend_to_cache(q: Heads, cache: KVCache, start: int | Int[Array, ""]) -> Heads:
    """As `attend_to_past`, over a cache that the new tokens are in already."""
    seq, length = q.shape[1], cache.keys.shape[1]
    seen = jnp.arange(length)[None] <= start + jnp.arange(seq)[:, None]
    weights = jax.nn.softmax(_scores(q, cache.keys, seen), axis=-1).astype(q.dtype)
    return _mixed(weights, cache.values, q.shape)


def _scores(
    q: Heads, keys: Float[Array, "batch_kv_heads length d_head"], seen: Bool[Array, "seq length"]
) -> Float[Array, "batch_kv_heads group_seq length"]:
    """Of all queries of a head's group, one token of the group after another."""
    batch, seq, heads, d_head = q.shape
    group = batch * heads // keys.shape[0]
    q = q.reshape(batch, seq, heads // group, group, d_head).transpose(0, 2, 3, 1, 4)
    each = jax.lax.dot_general(
        q.reshape(-1, group * seq, d_head),
        keys.astype(q.dtype),
        (((2,), (2,)), ((0,), (0,))),
        preferred_element_type=jnp.float32,
    )
    return jnp.where(jnp.tile(seen, (group, 1))[None], each / d_head**0.5, -jnp.inf)


def _mixed(
    weights: Float[Array, "batch_kv_heads group_seq length"],
    values: Float[Array, "batch_kv_heads length d_head"],
    shape: tuple[int, ...],
) -> Heads:
    """Values by the weights of each query, in the shape of the queries."""
    batch, seq, heads, d_head = shape
    mixed = jax.lax.dot_general(weights, values.astype(weights.dtype), (((2,), (1,)), ((0,), (0,))))
    mixed = mixed.reshape(batch, -1, weights.shape[1] // seq, seq, d_head)
    return mixed.transpose(0, 3, 1, 2, 4).reshape(batch, seq, heads, d_head)


def _first(rows: Rows) -> bool:
    """Whether it is known that nothing comes before."""
    return isinstance(rows.start, int) and rows.start == 0


def _as_cache(k: KVHeads, v: KVHeads, dtype: Any) -> KVCache:
    def rows(each: KVHeads) -> Float[Array, "batch_kv_heads seq d_head"]:
        batch, seq, kv_heads, d_head = each.shape
        return jnp.swapaxes(each, 1, 2).reshape(batch * kv_heads, seq, d_head).astype(dtype)

    return KVCache(rows(k), rows(v))


class ValueMix(AbstractWeights):
    """v <- own v + first v_1, with v_1 the first layer's values (ResFormer, Zhou et al. 2024)."""

    own: Float[Array, "*depth kv_heads"]
    first: Float[Array, "*depth kv_heads"]

    roles: ClassVar[dict[str, Role]] = {"own": "gain", "first": "gain"}

    def __call__(self, v: KVHeads, first: KVHeads) -> KVHeads:
        own, others = self.own[None, None, :, None], self.first[None, None, :, None]
        return (own * v + others * first).astype(v.dtype)


class Attention(AbstractAppendingMixer):
    """Causal attention with several heads, which may share keys and values."""

    mixes: ClassVar[Mixes] = "tokens"

    qkv: Linear
    out: Linear
    num_heads: int = eqx.field(static=True)
    num_kv_heads: int = eqx.field(static=True)
    rotary: Rotary | None = eqx.field(static=True, default=None)
    dropout: float = eqx.field(static=True, default=0.0)
    q_norm: AbstractNorm | None = None
    k_norm: AbstractNorm | None = None
    query_scale: float = eqx.field(static=True, default=1.0)
    value_mix: ValueMix | None = None

    def _heads(self, x: Float[Array, "rows d_model"], rows: Rows) -> tuple[Heads, KVHeads, KVHeads]:
        total = self.num_heads + 2 * self.num_kv_heads
        packed = self.qkv(x)
        packed = packed.reshape(rows.batch, rows.seq, total, packed.shape[-1] // total)
        # Not slices: the gradient of a split is one concatenation, that of slices sums of padding.
        sizes = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        q, k, v = jax.lax.split(packed, sizes, axis=2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = _normalise(q, self.q_norm), _normalise(k, self.k_norm)
        if self.rotary is not None:
            q, k = (rotate(each, rows.positions, self.rotary) for each in (q, k))
        if self.value_mix is not None and rows.values is not None:
            v = self.value_mix(v, rows.values)
        return q if self.query_scale == 1.0 else q * self.query_scale, k, v

    def values(self, x: Float[Array, "rows d_model"], rows: Rows) -> KVHeads:
        """Its own values alone."""
        width = self.qkv.weight.shape[-1] * self.num_kv_heads
        width //= self.num_heads + 2 * self.num_kv_heads
        bias = None if self.qkv.bias is None else self.qkv.bias[-width:]
        v = Linear(self.qkv.weight[:, -width:], bias)(x)
        return v.reshape(rows.batch, rows.seq, self.num_kv_heads, -1)

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
        shape = (batch * self.num_kv_heads, length, d_head)
        return KVCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

    def project(
        self, x: Float[Array, "rows d_model"], rows: Rows, state: KVCache
    ) -> tuple[tuple[Heads, KVHeads, KVHeads], KVCache]:
        q, k, v = self._heads(x, rows)
        return (q, k, v), _as_cache(k, v, state.keys.dtype)

    def recall(
        self, asked: tuple[Heads, KVHeads, KVHeads], rows: Rows, state: KVCache
    ) -> Float[Array, "rows d_model"]:
        mixed = attend(*asked) if _first(rows) else attend_to_cache(asked[0], state, rows.start)
        return self.out(mixed.reshape(rows.batch * rows.seq, -1))

    def append(
        self, x: Float[Array, "rows d_model"], rows: Rows, state: KVCache
    ) -> tuple[Float[Array, "rows d_model"], KVCache]:
        asked, new = self.project(x, rows, state)
        q, *_ = asked
        mixed = attend(*asked) if _first(rows) else attend_to_past(q, state, new, rows.start)
        return self.out(mixed.reshape(rows.batch * rows.seq, -1)), new

    def flops_per_token(self, context: int) -> int:
        width = self.out.weight.shape[-2]
        return self.qkv.flops_per_token + self.out.flops_per_token + 4 * context * width


@MIXERS.register("attention")
def init_attention(config: ModelConfig, out_scale: float, key: PRNGKeyArray) -> Attention:
    key_qkv, key_out = jax.random.split(key)
    d_model, std, d_head = config.d_model, config.init_std, config.d_head
    d_out, d_packed = (
        d_head * n for n in (config.num_heads, config.num_heads + 2 * config.kv_heads)
    )
    bias = config.bias if config.attention_bias is None else config.attention_bias
    out_bias = bias if config.attention_out_bias is None else config.attention_out_bias

    def norm() -> AbstractNorm | None:
        # A shift of the keys would add the same to all scores of a query: none has one.
        if not config.qk_norm:
            return None
        return init_norm(config.norm, d_head, bias=False, eps=config.norm_eps)

    return Attention(
        init_linear(d_model, d_packed, bias=bias, std=std, key=key_qkv, role="in_proj"),
        init_linear(
            d_out, d_model, bias=out_bias, std=std * out_scale, key=key_out, role="out_proj"
        ),
        config.num_heads,
        config.kv_heads,
        Rotary(config.d_rotary, config.rotary_base, config.rotary_scaling)
        if config.positions == "rope"
        else None,
        config.attention_dropout,
        norm(),
        norm(),
        1.0 if config.width_ratio is None else (MUP_HEAD / d_head) ** 0.5,
        _init_value_mix(config.kv_heads) if config.value_residual else None,
    )


def _init_value_mix(kv_heads: int) -> ValueMix:
    return ValueMix(jnp.full(kv_heads, 0.5), jnp.full(kv_heads, 0.5))


def _giving(block: Block) -> Branch | None:
    """The branch of the first attention, if others are to mix in its values."""
    for branch in block.branches:
        if isinstance(branch.mixer, Attention) and branch.mixer.value_mix is not None:
            return branch
    return None


def first_values(block: Block, x: Float[Array, "rows d_model"], rows: Rows) -> KVHeads | None:
    """Values that the first attention of a block makes of a state, if others are to mix them in."""
    if (branch := _giving(block)) is None:
        return None
    mixer: Any = branch.mixer
    return mixer.values(branch.normalised(x), rows)


def values_flops(block: Block) -> int:
    """Of `first_values`, per token."""
    mixer: Any = None if (branch := _giving(block)) is None else branch.mixer
    if mixer is None:
        return 0
    heads = mixer.num_heads + 2 * mixer.num_kv_heads
    return mixer.qkv.flops_per_token * mixer.num_kv_heads // heads
