"""The recurrence of Mamba-2: its three evaluations agree, forward and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.blocks.duality import (
    CHUNK,
    chunked_flops_per_token,
    ssd_chunked,
    ssd_scan,
    ssd_step,
)

LENGTHS = (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 2)


def make(seed, batch, seq, heads, head_dim, groups, state):
    rng = np.random.default_rng(seed)
    arrays = (
        rng.normal(size=(batch, seq, heads, head_dim)),
        np.log1p(np.exp(rng.normal(size=(batch, seq, heads)))),
        -np.exp(rng.normal(size=heads)),
        rng.normal(size=(batch, seq, groups, state)),
        rng.normal(size=(batch, seq, groups, state)),
        rng.normal(size=(batch, heads, head_dim, state)),
    )
    return tuple(jnp.asarray(value, jnp.float32) for value in arrays)


def by_hand(x, dt, a, b, c, initial):
    """The definition in float64, in plain loops."""
    x, dt, a, b, c, initial = (np.asarray(v, np.float64) for v in (x, dt, a, b, c, initial))
    batch, seq, heads, _ = x.shape
    per_group = heads // b.shape[2]
    y, final = np.zeros_like(x), np.zeros_like(initial)
    for z in range(batch):
        for head in range(heads):
            group = head // per_group
            h = initial[z, head]
            for k in range(seq):
                step = dt[z, k, head]
                h = np.exp(step * a[head]) * h + step * np.outer(x[z, k, head], b[z, k, group])
                y[z, k, head] = h @ c[z, k, group]
            final[z, head] = h
    return y, final


def pullback(function, arguments):
    """Outputs, and the gradient of a fixed random functional of all outputs."""

    @jax.jit
    def run(*arguments):
        outputs, vjp = jax.vjp(function, *arguments)
        rng = np.random.default_rng(7)
        cotangents = tuple(jnp.asarray(rng.normal(size=o.shape), o.dtype) for o in outputs)
        return outputs, vjp(cotangents)

    return run(*arguments)


def assert_near(actual, desired, tolerance=1e-4):
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        assert np.all(np.isfinite(one))
        assert np.max(np.abs(one - other)) <= tolerance * max(1.0, np.max(np.abs(other)))


@pytest.mark.parametrize("seq", LENGTHS)
@pytest.mark.parametrize(("heads", "groups"), [(4, 2), (3, 1), (2, 2)])
def test_scan_and_chunks_follow_the_definition(seq, heads, groups):
    arguments = make(seq, 2, seq, heads, 3, groups, 5)
    desired = by_hand(*arguments)
    assert_near(ssd_scan(*arguments), desired)
    assert_near(ssd_chunked(*arguments), desired)


@pytest.mark.parametrize("seq", LENGTHS)
def test_chunks_equal_the_scan_with_gradients(seq):
    arguments = make(seq, 2, seq, 4, 3, 2, 5)
    assert_near(pullback(ssd_chunked, arguments), pullback(ssd_scan, arguments))


@pytest.mark.parametrize("log_decay", [0.0, -1e-6, -50.0, -1e4])
def test_extreme_decays(log_decay):
    x, dt, _, b, c, initial = make(0, 1, 130, 2, 3, 1, 4)
    dt = jnp.ones_like(dt)
    arguments = (x, dt, jnp.array([log_decay, -0.5]), b, c, initial)
    chunked = pullback(ssd_chunked, arguments)
    assert_near(chunked[0], by_hand(*arguments))
    assert_near(chunked, pullback(ssd_scan, arguments))


def test_weak_decay_after_strong_decay_keeps_its_digits():
    # A difference of plain running sums near -2000 is wrong by about 1e-4 here, relatively.
    x, dt, _, b, c, initial = make(1, 1, CHUNK, 1, 3, 1, 4)
    half = CHUNK // 2
    dt = jnp.concatenate([jnp.full_like(dt[:, :half], 70.3), 0.0123 * dt[:, half:]], axis=1)
    arguments = (x, dt, jnp.array([-1.0]), b, c, initial)
    y, _ = by_hand(*arguments)
    actual, _ = ssd_chunked(*arguments)
    late = slice(half + 1, None)
    assert_near(actual[:, late], y[:, late], 1e-6)
    # The inputs after the cut alone, so that large values before it cannot hide an error.
    arguments = (x.at[:, :half].set(0.0), *arguments[1:])
    assert_near(ssd_chunked(*arguments)[0] * 100, by_hand(*arguments)[0] * 100, 2e-6)


@pytest.mark.parametrize("chunk", [1, 3, 16, 256])
def test_the_partition_does_not_matter(chunk):
    arguments = make(2, 2, 43, 4, 3, 2, 5)

    def partitioned(*arguments):
        return ssd_chunked(*arguments, chunk=chunk)

    assert_near(pullback(partitioned, arguments), pullback(ssd_scan, arguments))


@pytest.mark.parametrize("cut", [1, 64, 100, 129])
def test_a_sequence_may_be_run_in_two_pieces(cut):
    x, dt, a, b, c, initial = make(3, 2, 130, 4, 3, 2, 5)
    whole = ssd_chunked(x, dt, a, b, c, initial)
    first, carried = ssd_chunked(x[:, :cut], dt[:, :cut], a, b[:, :cut], c[:, :cut], initial)
    second, last = ssd_chunked(x[:, cut:], dt[:, cut:], a, b[:, cut:], c[:, cut:], carried)
    assert_near((jnp.concatenate([first, second], axis=1), last), whole)


def test_steps_follow_the_scan():
    x, dt, a, b, c, state = make(4, 2, 9, 4, 3, 2, 5)
    y, final = ssd_scan(x, dt, a, b, c, state)
    for k in range(x.shape[1]):
        y_k, state = ssd_step(x[:, k], dt[:, k], a, b[:, k], c[:, k], state)
        assert_near(y_k, y[:, k], 1e-6)
    assert_near(state, final, 1e-6)


def test_no_output_depends_on_later_inputs():
    x, dt, a, b, c, initial = make(5, 1, 70, 2, 3, 1, 4)
    y, _ = ssd_chunked(x, dt, a, b, c, initial)
    changed, _ = ssd_chunked(
        x.at[:, 37].add(1.0), dt.at[:, 37].add(1.0), a, b.at[:, 37].add(1.0), c, initial
    )
    np.testing.assert_array_equal(changed[:, :37], y[:, :37])
    assert np.max(np.abs(changed[:, 37] - y[:, 37])) > 0.1


def test_vmap_equals_a_loop():
    models = [make(seed, 2, 20, 2, 3, 1, 4) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
    together = jax.vmap(ssd_chunked)(*stacked)
    for index, arguments in enumerate(models):
        assert_near([value[index] for value in together], ssd_chunked(*arguments), 1e-6)


def test_forward_mode():
    arguments = make(6, 1, 70, 2, 3, 1, 4)
    tangents = make(7, 1, 70, 2, 3, 1, 4)
    chunked, scanned = (jax.jvp(f, arguments, tangents) for f in (ssd_chunked, ssd_scan))
    assert_near(chunked, scanned)


@pytest.mark.parametrize("function", [ssd_scan, ssd_chunked])
def test_bfloat16_inputs_are_summed_in_float32(function):
    # 1 + 1/512 is lost at once in a bfloat16 sum; 300 inputs of 1/512 make a visible difference.
    seq = 300
    final = function(
        jnp.full((1, seq, 1, 2), 2.0**-9, jnp.bfloat16),
        jnp.ones((1, seq, 1), jnp.bfloat16),
        jnp.zeros(1, jnp.bfloat16),
        jnp.ones((1, seq, 1, 3), jnp.bfloat16),
        jnp.ones((1, seq, 1, 3), jnp.bfloat16),
        jnp.ones((1, 1, 2, 3), jnp.bfloat16),
    )[1]
    assert final.dtype == jnp.float32
    assert_near(final, np.full((1, 1, 2, 3), 1 + seq / 512), 1e-6)


def test_bfloat16_stays_near_float32():
    rounded = tuple(value.astype(jnp.bfloat16) for value in make(8, 2, 130, 4, 8, 2, 5))
    y, final = ssd_chunked(*rounded)
    desired = by_hand(*rounded)
    assert y.dtype == jnp.bfloat16
    assert_near(y, desired[0], 2e-2)
    assert_near(final, desired[1])


def test_an_empty_chunk_is_refused():
    with pytest.raises(ValueError, match="chunk"):
        ssd_chunked(*make(0, 1, 4, 1, 2, 1, 2), chunk=0)


@pytest.mark.parametrize(
    ("seq", "heads", "head_dim", "groups", "state"),
    [(32, 8, 64, 1, 64), (64, 8, 64, 1, 64), (256, 8, 64, 2, 64), (100, 4, 64, 1, 128)],
)
def test_flops_are_those_of_the_program(seq, heads, head_dim, groups, state):
    batch = 2
    arguments = jax.eval_shape(lambda: make(0, batch, seq, heads, head_dim, groups, state))
    compiled = jax.jit(ssd_chunked).lower(*arguments).compile()
    # XLA counts the body of a loop once, whatever the number of chunks.
    chunks = -(-seq // CHUNK)
    counted = chunks * compiled.cost_analysis()["flops"]
    expected = batch * seq * chunked_flops_per_token(heads, head_dim, state, groups, seq)
    # The analytic count is of matrix products; the decays are the few per cent above it.
    assert 1.0 <= counted / expected < 1.08
