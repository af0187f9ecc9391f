"""Mixers: three evaluations of one layer, attention's two cores, dropout, and FLOPs."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from tiny_models import config_of, randomised

from qkvflow.blocks import MLP, AbstractMixer, Attention, Branch, LayerNorm, RMSNorm, Rows
from qkvflow.blocks.attention import Rotary, attend_with_dropout, rotate
from qkvflow.blocks.base import cast_matrices, dropout
from qkvflow.zoo import MIXERS, ModelConfig

KEY = jax.random.key(0)
D_MODEL = 16
STATE_SPACES = ("ssm", "selective-ssm")


def mixer_of(name: str, **overrides: Any) -> AbstractMixer:
    block = name if name in STATE_SPACES else "attention+mlp"
    config = config_of(block=block, **overrides)
    return randomised(MIXERS[name](config, 1.0, KEY), 0.1)


def inputs(batch: int, seq: int) -> tuple[Array, Rows]:
    return jax.random.normal(jax.random.key(1), (batch * seq, D_MODEL)), Rows(batch, seq)


def whole(mixer: Any, x: Array, rows: Rows) -> Array:
    return mixer(x, rows)


def scanned(mixer: Any, x: Array, rows: Rows) -> Array:
    return mixer.scanned(x, rows)


def token_by_token(mixer: Any, x: Array, rows: Rows) -> Array:
    state = mixer.init_state(rows.batch, rows.seq, jnp.dtype("float32"))

    def step(state: Any, inputs: tuple[Array, Array]) -> tuple[Any, Array]:
        x, position = inputs
        y, state = mixer.extend(x, Rows(rows.batch, 1, position), state)
        return state, y

    tokens = jnp.swapaxes(rows.unfold(x), 0, 1)
    _, y = jax.lax.scan(step, state, (tokens, jnp.arange(rows.seq)))
    return rows.fold(jnp.swapaxes(y, 0, 1))


@eqx.filter_jit
def value_and_gradient(
    evaluate: Callable[[Any, Array, Rows], Array], mixer: Any, x: Array, rows: Rows
) -> tuple[Array, Any]:
    def weighed(arguments: tuple[Any, Array]) -> tuple[Array, Array]:
        y = evaluate(*arguments, rows)
        # Any weights will do; these differ from entry to entry.
        return jnp.sum(y * jnp.sin(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)), y

    gradient, y = eqx.filter_grad(weighed, has_aux=True)((mixer, x))
    return y, gradient


@pytest.mark.parametrize("seq", [1, 7, 65, 130])
@pytest.mark.parametrize("name", STATE_SPACES)
def test_three_evaluations_agree(name: str, seq: int):
    mixer, (x, rows) = mixer_of(name), inputs(2, seq)
    y, gradient = value_and_gradient(whole, mixer, x, rows)
    assert np.abs(y).max() > 0.1
    for other in (scanned, token_by_token):
        found, slopes = value_and_gradient(other, mixer, x, rows)
        np.testing.assert_allclose(found, y, atol=1e-4)
        for a, b in zip(jax.tree.leaves(slopes), jax.tree.leaves(gradient), strict=True):
            scale = max(1.0, float(jnp.abs(b).max()))
            np.testing.assert_allclose(a / scale, b / scale, atol=1e-4)


@eqx.filter_jit
def in_pieces(mixer: Any, x: Array, rows: Rows, lengths: tuple[int, ...]) -> Array:
    state = mixer.init_state(rows.batch, rows.seq, jnp.dtype("float32"))
    pieces, start = [], 0
    for length in lengths:
        piece = rows.unfold(x)[:, start : start + length].reshape(-1, D_MODEL)
        y, state = mixer.extend(piece, Rows(rows.batch, length, start), state)
        pieces.append(y.reshape(rows.batch, length, D_MODEL))
        start += length
    return rows.fold(jnp.concatenate(pieces, axis=1))


@eqx.filter_jit
def run(mixer: Any, x: Array, rows: Rows) -> Array:
    return mixer(x, rows)


@pytest.mark.parametrize("name", MIXERS)
def test_extend_equals_call(name: str):
    """In pieces of any size, what was remembered of the past is enough."""
    mixer, (x, rows) = mixer_of(name), inputs(2, 9)
    np.testing.assert_allclose(
        in_pieces(mixer, x, rows, (4, 1, 3, 1)), run(mixer, x, rows), atol=2e-5
    )


@pytest.mark.parametrize("name", MIXERS)
def test_sequences_of_a_batch_do_not_meet(name: str):
    mixer, (x, rows) = mixer_of(name), inputs(3, 5)
    together = rows.unfold(run(mixer, x, rows))
    for sequence, expected in zip(rows.unfold(x), together, strict=True):
        np.testing.assert_allclose(run(mixer, sequence, Rows(1, 5)), expected, atol=2e-5)


# Attention


def heads(seq: int, count: int, seed: int) -> Array:
    return jax.random.normal(jax.random.key(seed), (2, seq, count, 6))


def plain_attention(*heads: Any) -> np.ndarray:
    """One query, one head and one sequence at a time."""
    q, k, v = (np.asarray(each, np.float64) for each in heads)
    y = np.zeros_like(q)
    for b, i, h in np.ndindex(q.shape[:3]):
        shared = h // (q.shape[2] // k.shape[2])
        scores = k[b, : i + 1, shared] @ q[b, i, h] / np.sqrt(q.shape[3])
        weights = np.exp(scores - scores.max())
        y[b, i, h] = weights / weights.sum() @ v[b, : i + 1, shared]
    return y


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_cores(kv_heads: int):
    """The fused core, and the core with dropout at rate 0, equal the definition."""
    q, k, v = heads(7, 4, 0), heads(7, kv_heads, 1), heads(7, kv_heads, 2)
    expected = plain_attention(q, k, v)
    fused = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    np.testing.assert_allclose(fused, expected, atol=1e-5)
    np.testing.assert_allclose(attend_with_dropout(q, k, v, 0.0, KEY), expected, atol=1e-5)


def test_attention_dropout():
    """Off without a key; near the fused path at a vanishing rate; another result with a rate."""
    x, rows = inputs(2, 7)
    plain, tiny_rate, real = (
        mixer_of("attention", attention_dropout=rate) for rate in (0.0, 1e-7, 0.5)
    )
    expected = plain(x, rows)
    np.testing.assert_array_equal(real(x, rows), expected)
    np.testing.assert_array_equal(plain(x, rows, key=KEY), expected)
    np.testing.assert_allclose(tiny_rate(x, rows, key=KEY), expected, atol=1e-5)
    assert np.abs(real(x, rows, key=KEY) - expected).max() > 1e-2


def test_rotation_depends_on_distance_alone():
    q, k = heads(1, 1, 0)[:1], heads(1, 1, 1)[:1]

    def score(i: int, j: int) -> float:
        one, other = (
            rotate(each, jnp.asarray([position]), Rotary(6, 100.0))
            for each, position in ((q, i), (k, j))
        )
        return float(jnp.sum(one * other))

    assert score(5, 3) == pytest.approx(score(12, 10), abs=1e-5)
    assert score(0, 0) == pytest.approx(float(jnp.sum(q * k)), abs=1e-6)
    assert abs(score(5, 3) - score(5, 4)) > 1e-3


def test_partial_and_scaled_rotation():
    """Against the equations, one pair of channels at a time; unscaled where nothing is asked."""
    x, position = heads(1, 1, 0)[:1], 37
    numbers = (8.0, 1.0, 4.0, 32.0)
    for rotary in (
        Rotary(4, 100.0, "llama3:8:1:4:32"),
        Rotary(4, 100.0, "linear:3"),
        Rotary(6, 100.0),
    ):
        expected = np.array(x, np.float64)[0, 0, 0]
        for i in range(half := rotary.size // 2):
            frequency = 100.0 ** (-i / half)
            if "linear" in rotary.scaling:
                frequency /= 3.0
            if "llama3" in rotary.scaling:
                factor, low, high, original = numbers
                wavelength = 2.0 * np.pi / frequency
                if wavelength > original / low:
                    frequency /= factor
                elif wavelength > original / high:
                    smooth = (original / wavelength - low) / (high - low)
                    frequency = (1.0 - smooth) * frequency / factor + smooth * frequency
            turn = np.exp(1j * position * frequency)
            pair = (expected[i] + 1j * expected[i + half]) * turn
            expected[[i, i + half]] = pair.real, pair.imag
        found = rotate(x, jnp.asarray([position]), rotary)[0, 0, 0]
        np.testing.assert_allclose(found, expected, atol=2e-5)
        np.testing.assert_array_equal(found[rotary.size :], x[0, 0, 0, rotary.size :])


def test_head_size_norms_and_biases_of_attention():
    """Wider heads than d_model / num_heads, normalised queries and keys: against the definition;
    in pieces it is the same."""
    options = {"head_dim": 6, "qk_norm": True, "norm": "rmsnorm", "attention_out_bias": False}
    mixer, (x, rows) = mixer_of("attention", **options), inputs(2, 7)
    assert isinstance(mixer, Attention)
    assert mixer.qkv.bias is not None
    assert mixer.out.bias is None
    assert mixer.qkv.weight.shape == (D_MODEL, 6 * 8)
    assert mixer.out.weight.shape == (6 * 4, D_MODEL)
    weight, bias = np.asarray(mixer.qkv.weight, np.float64), np.asarray(mixer.qkv.bias)
    packed = (np.asarray(x, np.float64) @ weight + bias).reshape(2, 7, 8, 6)
    q, k, v = packed[:, :, :4], packed[:, :, 4:6], packed[:, :, 6:]

    def normed(heads: np.ndarray, norm: Any) -> np.ndarray:
        return heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-5) * np.asarray(norm.scale)

    q, k = normed(q, mixer.q_norm), normed(k, mixer.k_norm)
    mixed = plain_attention(q, k, v).reshape(14, 24)
    expected = mixed @ np.asarray(mixer.out.weight, np.float64)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(run(mixer, x, rows), expected, atol=2e-5)
    np.testing.assert_allclose(in_pieces(mixer, x, rows, (4, 1, 2)), expected, atol=2e-5)
    assert mixer.flops_per_token(10) == 2 * (D_MODEL * 48 + 24 * D_MODEL) + 4 * 10 * 24


def test_exact_gelu():
    mixer, (x, rows) = mixer_of("mlp", activation="gelu"), inputs(1, 5)
    assert isinstance(mixer, MLP)
    hidden = np.asarray(mixer.up(x), np.float64)
    erf = np.vectorize(math.erf)(hidden / np.sqrt(2.0))
    expected = mixer.down(jnp.asarray(0.5 * hidden * (1.0 + erf), jnp.float32))
    np.testing.assert_allclose(mixer(x, rows), expected, atol=1e-5)
    assert 1e-6 < np.abs(mixer(x, rows) - mixer_of("mlp")(x, rows)).max() < 1e-2


# Norms


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_norms(kind: type):
    scale, shift = jax.random.normal(KEY, (2, D_MODEL))
    x = 3.0 + 2.0 * inputs(1, 5)[0]
    y = np.asarray(x, np.float64)
    if kind is LayerNorm:
        norm: Any = LayerNorm(scale, shift, 1e-2)
        y = y - y.mean(axis=1, keepdims=True)
    else:
        norm, shift = RMSNorm(scale, 1e-2), 0.0 * shift
    y = y / np.sqrt((y**2).mean(axis=1, keepdims=True) + 1e-2)
    np.testing.assert_allclose(norm(x), y * np.asarray(scale)[None] + shift[None], atol=1e-5)
    assert norm(x.astype(jnp.bfloat16)).dtype == jnp.bfloat16


# Dropout


def test_dropout():
    x = jax.random.normal(KEY, (50,))
    np.testing.assert_array_equal(dropout(x, 0.3, None), x)
    np.testing.assert_array_equal(dropout(x, 0.0, KEY), x)
    many = jax.vmap(lambda key: dropout(x, 0.3, key))(jax.random.split(KEY, 4000))
    kept = np.asarray(many) != 0.0
    assert kept.mean() == pytest.approx(0.7, abs=0.01)
    np.testing.assert_allclose(many.mean(axis=0), x, atol=0.05)
    np.testing.assert_allclose(np.asarray(many)[kept], np.broadcast_to(x / 0.7, kept.shape)[kept])


def test_branch_dropout():
    x, rows = inputs(2, 5)
    norm, mixer = RMSNorm(jnp.ones(D_MODEL)), mixer_of("mlp")
    off, on = Branch(norm, mixer, 0.0), Branch(norm, mixer, 0.5)
    np.testing.assert_array_equal(on(x, rows), off(x, rows))
    np.testing.assert_array_equal(off(x, rows, key=KEY), off(x, rows))
    dropped = np.asarray(on(x, rows, key=KEY)) == 0.0
    assert 0.3 < dropped.mean() < 0.7


# Precision and cost


@pytest.mark.parametrize("name", MIXERS)
def test_matrices_alone_become_narrow(name: str):
    mixer = cast_matrices(mixer_of(name), jnp.dtype("bfloat16"))
    x, rows = inputs(2, 9)
    narrow = run(mixer, x, rows)
    assert narrow.dtype == jnp.bfloat16
    assert {leaf.ndim for leaf in jax.tree.leaves(mixer) if leaf.dtype == jnp.bfloat16} == {2}
    np.testing.assert_allclose(
        narrow.astype(jnp.float32), run(mixer_of(name), x, rows), atol=0.1, rtol=0.05
    )


@pytest.mark.parametrize("name", MIXERS)
def test_flops_against_xla(name: str):
    """XLA counts activations as well: at these widths a few hundredths of the products."""
    config = ModelConfig(block=name, d_model=256, num_heads=2, d_state=128, context=64)
    mixer = eqx.filter_eval_shape(lambda key: MIXERS[name](config, 1.0, key), KEY)
    rows = Rows(1, 64)
    x = jax.ShapeDtypeStruct((64, 256), jnp.float32)
    cost = jax.jit(lambda mixer, x: mixer(x, rows)).lower(mixer, x).cost_analysis()
    assert cost is not None
    assert cost["flops"] == pytest.approx(64 * mixer.flops_per_token(64), rel=0.05)


def test_flops_of_attention_grow_with_the_context():
    mixer = mixer_of("attention")
    assert isinstance(mixer, Attention)
    assert mixer.flops_per_token(100) - mixer.flops_per_token(90) == 10 * 4 * D_MODEL
    for name in ("mlp", "swiglu", "ssm", "selective-ssm"):
        other = mixer_of(name)
        assert other.flops_per_token(64) == pytest.approx(other.flops_per_token(128), rel=0.1)
