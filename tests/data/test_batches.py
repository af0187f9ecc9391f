"""Batches: pure in (seed, step), equal on device and host, and evaluation covers all once."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32

from qkvflow.data.batches import (
    BatchLoader,
    evaluation_windows,
    fits_on_device,
    gather_windows,
    host_window_starts,
    host_windows,
    threefry,
    window_mask,
    window_starts,
)


def test_threefry_is_that_of_its_authors():
    # Known answers of the Random123 distribution, 20 rounds.
    ones = np.full(1, 0xFFFFFFFF, dtype=np.uint32)
    zeros = np.zeros(1, dtype=np.uint32)
    assert [hex(w[0]) for w in threefry(zeros, zeros, zeros, zeros)] == ["0x6b200159", "0x99ba4efe"]
    assert [hex(w[0]) for w in threefry(ones, ones, ones, ones)] == ["0x1cb996fc", "0xbb002be7"]
    rng = np.random.default_rng(0)
    k0, k1, c0, c1 = rng.integers(2**32, size=(4, 1), dtype=np.uint32)
    expected = threefry_2x32((k0[0], k1[0]), jnp.concatenate([c0, c1]))
    assert np.array_equal(np.concatenate(threefry(k0, k1, c0, c1)), expected)


@pytest.mark.parametrize("num_tokens", [66, 1000, 10**6 + 3, 2**31 - 1])
def test_device_and_host_draw_the_same_starts(num_tokens: int):
    for seed, step in [(0, 0), (1, 0), (0, 1), (2**32 - 1, 12345), (7, 2**31 + 5)]:
        device = window_starts(seed, step, 64, num_tokens, 64)
        host = host_window_starts(seed, step, 64, num_tokens, 64)
        assert np.array_equal(device, host)
        assert host.min() >= 0
        assert host.max() + 64 < num_tokens


def test_starts_beyond_32_bits():
    starts = host_window_starts(3, 4, 4096, 10**11, 128)
    assert starts.min() >= 0
    assert starts.max() < 10**11 - 128
    # Uniform: the mean is half, give or take five standard errors.
    assert abs(starts.mean() / 1e11 - 0.5) < 5 * (1 / 12 / 4096) ** 0.5
    with pytest.raises(ValueError, match="BatchLoader"):
        window_starts(0, 0, 4, 2**31, 128)


def test_starts_are_uniform_over_every_place():
    draw = jax.jit(lambda step: window_starts(0, step, 1000, 11, 1))
    counts = np.bincount(np.concatenate([draw(step) for step in range(20)]), minlength=10)
    assert len(counts) == 10
    expected = 2000
    assert ((counts - expected) ** 2 / expected).sum() < 27.9  # chi-square, 9 degrees, p = 0.001


def test_a_batch_depends_on_seed_and_step_alone():
    base = window_starts(0, 5, 32, 10_000, 16)
    assert np.array_equal(base, window_starts(0, 5, 32, 10_000, 16))
    assert not np.array_equal(base, window_starts(1, 5, 32, 10_000, 16))
    assert not np.array_equal(base, window_starts(0, 6, 32, 10_000, 16))
    assert not np.array_equal(base, window_starts(5, 0, 32, 10_000, 16))


def test_starts_inside_jit_scan_and_vmap_are_the_same():
    seeds = jnp.arange(3)

    def run(seed):
        def body(carry, step):
            return carry, window_starts(seed, step, 4, 500, 8)

        return jax.lax.scan(body, None, jnp.arange(5))[1]

    stacked = jax.jit(jax.vmap(run))(seeds)
    for seed in range(3):
        for step in range(5):
            assert np.array_equal(stacked[seed, step], window_starts(seed, step, 4, 500, 8))


def test_windows_hold_the_next_token_as_target():
    tokens = jnp.arange(100, dtype=jnp.uint8)
    inputs, targets = jax.jit(gather_windows, static_argnums=2)(tokens, jnp.asarray([0, 90]), 9)
    assert inputs.dtype == targets.dtype == jnp.int32
    assert inputs[1].tolist() == list(range(90, 99))
    assert targets[1].tolist() == list(range(91, 100))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_the_loader_gives_the_batches_of_the_device(dtype: type):
    rng = np.random.default_rng(0)
    tokens = rng.integers(200, size=5000).astype(dtype)
    on_device = jnp.asarray(tokens)
    with BatchLoader(tokens, seed=3, batch_size=8, context=32, first_step=7) as loader:
        for step in range(7, 27):
            inputs, targets = next(loader)
            starts = window_starts(3, step, 8, len(tokens), 32)
            expected = gather_windows(on_device, starts, 32)
            assert inputs.dtype == np.int32
            assert np.array_equal(inputs, expected[0])
            assert np.array_equal(targets, expected[1])


def test_rows_are_one_process_part_of_the_batch():
    tokens = np.arange(1000, dtype=np.uint16)
    parts = [
        BatchLoader(tokens, seed=1, batch_size=6, context=8, rows=slice(i, i + 2)).batch(4)[0]
        for i in (0, 2, 4)
    ]
    full = BatchLoader(tokens, seed=1, batch_size=6, context=8).batch(4)[0]
    assert np.array_equal(np.concatenate(parts), full)


def test_a_closed_loader_leaves_no_thread():
    loader = BatchLoader(np.arange(100, dtype=np.uint8), seed=0, batch_size=2, context=4)
    next(loader)
    loader.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "batches"]
    assert list(loader) == []


def test_an_error_in_the_thread_reaches_the_reader():
    class Broken(np.ndarray):
        def __getitem__(self, _):
            raise OSError("disk gone")

    broken = np.arange(100, dtype=np.uint8).view(Broken)
    with (
        BatchLoader(broken, seed=0, batch_size=2, context=4) as loader,
        pytest.raises(OSError, match="disk gone"),
    ):
        next(loader)


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 17, 18, 65, 100])
@pytest.mark.parametrize(("context", "batch_size"), [(16, 2), (4, 3), (200, 2)])
def test_evaluation_covers_every_target_once(num_tokens: int, context: int, batch_size: int):
    tokens = np.arange(num_tokens, dtype=np.uint16)
    starts, lengths = evaluation_windows(num_tokens, context, batch_size)
    assert starts.shape == lengths.shape
    assert starts.shape[1] == batch_size
    seen = []
    for row_starts, row_lengths in zip(starts, lengths, strict=True):
        mask = np.asarray(window_mask(jnp.asarray(row_lengths), context))
        inputs, targets = gather_windows(jnp.asarray(tokens), jnp.asarray(row_starts), context)
        on_host = host_windows(tokens, row_starts, context)
        assert np.array_equal(inputs, on_host[0])
        assert np.array_equal(targets, on_host[1])
        assert np.array_equal(np.asarray(targets)[mask], np.asarray(inputs)[mask] + 1)
        seen += np.asarray(targets)[mask].tolist()
    assert seen == list(range(1, num_tokens))


def test_what_fits_on_the_device():
    assert fits_on_device(10**6)
    assert fits_on_device(10**9, itemsize=1)
    assert not fits_on_device(10**9)
    assert not fits_on_device(2**31, itemsize=0)


def test_too_few_tokens_for_a_window():
    with pytest.raises(ValueError, match="no window"):
        window_starts(0, 0, 2, 8, 8)
    assert window_starts(0, 0, 2, 9, 8).tolist() == [0, 0]
