"""Layers written plainly in NumPy, in float64, from the equations of their papers.

They read a model's arrays and share no code with it. States are `seq d_model`, of one text.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

State = NDArray[np.float64]


def array(x: Any) -> State:
    return np.asarray(x, np.float64)


def norm(x: State, weights: Any) -> State:
    """RMSNorm, or LayerNorm if there is a shift."""
    if hasattr(weights, "shift"):
        centred = x - x.mean(-1, keepdims=True)
        y = centred / np.sqrt(x.var(-1, keepdims=True) + weights.eps) * array(weights.scale)
        return y if weights.shift is None else y + array(weights.shift)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + weights.eps) * array(weights.scale)


def linear(x: State, weights: Any) -> State:
    y = x @ array(weights.weight)
    return y if weights.bias is None else y + array(weights.bias)


def values(x: State, mixer: Any) -> State:
    """Values of every key and value head, `seq heads d_head`."""
    d_head = mixer.out.weight.shape[0] // mixer.num_heads
    packed = linear(x, mixer.qkv).reshape(len(x), -1, d_head)
    return packed[:, mixer.num_heads + mixer.num_kv_heads :]


def attention(x: State, mixer: Any, v: State | None = None) -> State:
    """With the values given, where they are not the mixer's own."""
    heads, kv_heads = mixer.num_heads, mixer.num_kv_heads
    d_head = mixer.out.weight.shape[0] // heads
    packed = linear(x, mixer.qkv).reshape(len(x), heads + 2 * kv_heads, d_head)
    q, k = packed[:, :heads], packed[:, heads : heads + kv_heads]
    v = values(x, mixer) if v is None else v
    if mixer.rotary is not None:
        q, k = rotated(q, mixer.rotary.base), rotated(k, mixer.rotary.base)
    y = np.zeros_like(q)
    for head in range(heads):
        shared = head * kv_heads // heads
        for i in range(len(x)):
            scores = k[: i + 1, shared] @ q[i, head] / np.sqrt(d_head)
            weights = np.exp(scores - scores.max())
            y[i, head] = weights / weights.sum() @ v[: i + 1, shared]
    return linear(y.reshape(len(x), -1), mixer.out)


def rotated(x: State, base: float) -> State:
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * base ** (-np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)[:, None]
    return np.concatenate([turned.real, turned.imag], axis=-1)


def feed_forward(x: State, mixer: Any) -> State:
    """SwiGLU if there is a gate, else the MLP of GPT-2."""
    up = linear(x, mixer.up)
    if hasattr(mixer, "gate"):
        gate = linear(x, mixer.gate)
        return linear(gate / (1 + np.exp(-gate)) * up, mixer.down)
    inner = np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)
    return linear(0.5 * up * (1 + np.tanh(inner)), mixer.down)


def mix(x: State, mixer: Any) -> State:
    return attention(x, mixer) if hasattr(mixer, "qkv") else feed_forward(x, mixer)
