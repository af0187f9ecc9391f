"""Fast forms beside their plain twins: values, gradients, forward mode, cuDNN on a GPU."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.blocks.kernels import (
    attend,
    attention,
    forward_mode,
    gelu,
    layer_norm,
    product,
    rms_norm,
)
from qkvflow.blocks.kernels.attention import plain_attend
from qkvflow.blocks.kernels.rows import (
    plain_gelu,
    plain_layer_norm,
    plain_product,
    plain_rms_norm,
)


def normal(seed: int, *shape: int, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def assert_twins(fast: Any, plain: Any, *args: Any, close: float = 1e-5) -> None:
    """Equal in value and in all gradients, relative to the largest element."""

    def derived(function: Any, args: Any) -> Any:
        y, back = jax.vjp(function, *args)
        return y, *back(normal(99, *y.shape, dtype=y.dtype))

    found, expected = jax.jit(lambda *args: (derived(fast, args), derived(plain, args)))(*args)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, atol=close * (np.abs(b).max() or 1.0), rtol=0)


def heads(seq: int, num_heads: int, kv_heads: int, d_head: int, dtype: Any = jnp.float32) -> Any:
    sizes = (num_heads, kv_heads, kv_heads)
    return [normal(i, 2, seq, size, d_head, dtype=dtype) for i, size in enumerate(sizes)]


@pytest.mark.parametrize("seq", [1, 7, 64, 127, 128, 300, 512, 513, 768, 1100])
@pytest.mark.parametrize(("num_heads", "kv_heads"), [(2, 2), (4, 2)])
def test_attention_is_its_plain_twin(seq: int, num_heads: int, kv_heads: int):
    assert_twins(attend, plain_attend, *heads(seq, num_heads, kv_heads, 8))


@pytest.mark.parametrize("seq", [100, 700])
def test_attention_in_half_precision(seq: int):
    q, k, v = heads(seq, 4, 2, 16, jnp.bfloat16)
    assert_twins(attend, plain_attend, q, k, v, close=2e-2)
    # Nearer to the truth than rounding the result once.
    exact = jax.jit(plain_attend)(*(np.asarray(x, np.float32) for x in (q, k, v)))
    error = np.abs(np.asarray(jax.jit(attend)(q, k, v), np.float32) - exact).max()
    assert error < 2**-7 * np.abs(exact).max()


def test_sequences_together_are_those_in_turn(monkeypatch: pytest.MonkeyPatch):
    """Several devices: all long sequences at once."""
    monkeypatch.setattr(jax, "device_count", lambda: 2)
    assert_twins(attend, plain_attend, *heads(600, 4, 2, 8))


def test_large_scores_do_not_overflow():
    q, k, v = heads(600, 2, 2, 8)
    assert_twins(attend, plain_attend, 100.0 * q, k, v, close=1e-4)
    assert_twins(attend, plain_attend, 100.0 * q[:, :64], k[:, :64], v[:, :64], close=1e-4)


@pytest.mark.parametrize("shape", [(5, 3, 7), (16, 32, 8)])
@pytest.mark.parametrize("bias", [True, False])
def test_product_is_its_plain_twin(shape: tuple[int, int, int], bias: bool):
    rows, d_in, d_out = shape
    x, weight = normal(0, rows, d_in), normal(1, d_in, d_out)
    if bias:
        assert_twins(product, plain_product, x, weight, normal(2, d_out))
    else:
        assert_twins(
            lambda x, w: product(x, w, None), lambda x, w: plain_product(x, w, None), x, weight
        )


def test_norms_and_gelu_are_their_plain_twins():
    x, scale, shift = 3.0 * normal(0, 20, 24) + 1.0, normal(1, 24), normal(2, 24)
    assert_twins(
        lambda x, s, b: layer_norm(x, s, b, 1e-5),
        lambda x, s, b: plain_layer_norm(x, s, b, 1e-5),
        x,
        scale,
        shift,
    )
    assert_twins(
        lambda x, s: layer_norm(x, s, None, 1e-5),
        lambda x, s: plain_layer_norm(x, s, None, 1e-5),
        x,
        scale,
    )
    assert_twins(
        lambda x, s: rms_norm(x, s, 1e-6), lambda x, s: plain_rms_norm(x, s, 1e-6), x, scale
    )
    assert_twins(gelu, plain_gelu, 2.0 * x)


def test_forward_mode_gives_the_same_derivative():
    def layer(x: jax.Array) -> jax.Array:
        y = gelu(product(layer_norm(x, normal(1, 8), normal(2, 8), 1e-5), normal(3, 8, 24), None))
        q, k, v = jnp.split(rms_norm(y, normal(4, 24), 1e-6).reshape(1, 6, 3, 8), 3, axis=2)
        return attend(q, k, v).reshape(6, 8)

    def plainly(x: jax.Array) -> jax.Array:
        with forward_mode():
            return layer(x)

    x = normal(0, 6, 8)
    np.testing.assert_allclose(
        jax.jit(jax.jacfwd(plainly))(x), jax.jit(jax.jacrev(layer))(x), rtol=1e-4, atol=1e-5
    )
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jacfwd(layer)(x)


def test_cudnn_is_asked_for_on_a_gpu(monkeypatch: pytest.MonkeyPatch):
    """Without a GPU: what JAX asks of the machine is answered for it, the program is only read."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(
        "jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000
    )
    monkeypatch.setattr(
        "jax._src.cudnn.fused_attention_stablehlo.check_compute_capability", lambda *_: True
    )

    def program(dtype: Any, d_head: int) -> str:
        q, k, v = (jax.ShapeDtypeStruct(x.shape, dtype) for x in heads(128, 4, 4, d_head))

        def gradient(q: Any, k: Any, v: Any) -> Any:
            return jax.grad(lambda q: attend(q, k, v).astype(jnp.float32).sum())(q)

        return jax.jit(gradient).trace(q, k, v).lower(lowering_platforms=("cuda",)).as_text()

    fused = program(jnp.bfloat16, 64)
    assert "__cudnn$fmhaSoftmax" in fused
    assert "__cudnn$fmhaSoftmaxBackward" in fused
    assert "__cudnn" not in program(jnp.float32, 64)
    assert "__cudnn" not in program(jnp.bfloat16, 20)
    assert attention.on_cudnn(jnp.zeros((1, 8, 2, 64), jnp.bfloat16))
