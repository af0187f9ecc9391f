"""The short causal convolution against its definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.blocks.kernels.convolution import causal_conv


def make(seed, batch, seq, channels, width):
    rng = np.random.default_rng(seed)
    shapes = ((batch, seq, channels), (width, channels), (batch, width - 1, channels))
    return tuple(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)


def by_hand(x, kernel, tail):
    past = np.concatenate([np.asarray(tail, np.float64), np.asarray(x, np.float64)], axis=1)
    kernel = np.asarray(kernel, np.float64)
    width, channels = kernel.shape
    y = np.zeros(x.shape)
    for batch in range(x.shape[0]):
        for k in range(x.shape[1]):
            for channel in range(channels):
                for w in range(width):
                    y[batch, k, channel] += kernel[w, channel] * past[batch, k + w, channel]
    return y, past[:, past.shape[1] - (width - 1) :]


@pytest.mark.parametrize("seq", [1, 2, 3, 4, 17])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_the_definition(seq, width):
    arguments = make(seq, 2, seq, 3, width)
    for actual, desired in zip(causal_conv(*arguments), by_hand(*arguments), strict=True):
        np.testing.assert_allclose(actual, desired, rtol=1e-5, atol=1e-6)


def test_the_last_row_of_the_kernel_weighs_the_current_position():
    x, _, tail = make(0, 1, 5, 2, 3)
    kernel = jnp.zeros((3, 2)).at[2].set(1.0)
    np.testing.assert_array_equal(causal_conv(x, kernel, tail)[0], x)


@pytest.mark.parametrize("cut", [1, 2, 5, 8])
def test_a_sequence_may_be_run_in_two_pieces(cut):
    x, kernel, tail = make(1, 2, 9, 3, 4)
    whole, last = causal_conv(x, kernel, tail)
    first, carried = causal_conv(x[:, :cut], kernel, tail)
    second, end = causal_conv(x[:, cut:], kernel, carried)
    np.testing.assert_allclose(jnp.concatenate([first, second], axis=1), whole, rtol=1e-6)
    np.testing.assert_array_equal(end, last)


def test_gradients_are_those_of_the_definition():
    x, kernel, tail = make(2, 2, 6, 3, 4)
    weights = make(3, 2, 6, 3, 4)[0]

    def total(x, kernel, tail):
        return jnp.sum(causal_conv(x, kernel, tail)[0] * weights)

    gradients = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(x, kernel, tail)
    # The convolution is linear in x with tail, and in the kernel: its own derivative there.
    d_x, d_kernel, d_tail = make(4, 2, 6, 3, 4)
    changes = (
        by_hand(d_x, kernel, jnp.zeros_like(tail))[0],
        by_hand(x, d_kernel, tail)[0],
        by_hand(jnp.zeros_like(x), kernel, d_tail)[0],
    )
    for gradient, direction, change in zip(
        gradients, (d_x, d_kernel, d_tail), changes, strict=True
    ):
        actual = np.sum(np.asarray(gradient, np.float64) * np.asarray(direction))
        np.testing.assert_allclose(actual, np.sum(change * np.asarray(weights)), rtol=1e-4)


def test_bfloat16_keeps_its_dtype():
    arguments = tuple(value.astype(jnp.bfloat16) for value in make(4, 1, 6, 2, 4))
    y, tail = causal_conv(*arguments)
    assert y.dtype == tail.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(y, np.float64), by_hand(*arguments)[0], atol=0.1)
