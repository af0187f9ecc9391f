"""The recurrence of Mamba-2: its three evaluations agree, forward and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.blocks.kernels.duality import (
    CHUNK,
    chunked_flops_per_token,
    ssd_chunked,
    ssd_scan,
    ssd_step,
)

# Compiled as a whole: run operation by operation, every operation is compiled by itself.
scanned, chunked = jax.jit(ssd_scan), jax.jit(ssd_chunked)

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
def test_scan_and_chunks_follow_the_definition(seq):
    arguments = make(seq, 2, seq, 4, 3, 2, 5)
    reference = pullback(ssd_scan, arguments)
    assert_near(reference[0], by_hand(*arguments))
    assert_near(pullback(ssd_chunked, arguments), reference)


@pytest.mark.parametrize(("heads", "groups"), [(3, 1), (2, 2)])
def test_heads_share_the_inputs_of_their_group(heads, groups):
    arguments = make(heads, 2, CHUNK + 6, heads, 3, groups, 5)
    reference = pullback(ssd_scan, arguments)
    assert_near(reference[0], by_hand(*arguments))
    assert_near(pullback(ssd_chunked, arguments), reference)


def test_extreme_decays():
    decays = jnp.array([0.0, -1e-6, -0.5, -50.0, -1e4])
    x, dt, _, b, c, initial = make(0, 1, CHUNK + 6, 5, 3, 5, 4)
    arguments = (x, jnp.ones_like(dt), decays, b, c, initial)
    actual, reference = pullback(ssd_chunked, arguments), pullback(ssd_scan, arguments)
    (y, final), (dx, ddt, da, db, dc, dh) = jax.tree.map(lambda *pair: pair, actual, reference)
    desired = by_hand(*arguments)
    for h in range(5):  # one by one: a large head must not hide an error in a small one
        assert_near((y[0][:, :, h], final[0][:, h]), (desired[0][:, :, h], desired[1][:, h]))
        for one, other in (dx, ddt, db, dc):
            assert_near(one[:, :, h], other[:, :, h])
        assert_near(da[0][h], da[1][h])
        assert_near(dh[0][:, h], dh[1][:, h])


@pytest.mark.parametrize("strong", [70.3, 30000.7])
def test_weak_decay_after_strong_decay_keeps_its_digits(strong):
    # A difference of plain running sums near -2000 is wrong by about 1e-4 here, relatively.
    x, dt, _, b, c, initial = make(1, 1, CHUNK, 1, 3, 1, 4)
    half = CHUNK // 2
    dt = jnp.concatenate([jnp.full_like(dt[:, :half], strong), 0.0123 * dt[:, half:]], axis=1)
    arguments = (x, dt, jnp.array([-1.0]), b, c, initial)
    y, _ = by_hand(*arguments)
    actual, _ = chunked(*arguments)
    late = slice(half + 1, None)
    assert_near(actual[:, late], y[:, late], 1e-6)
    # The inputs after the cut alone, so that large values before it cannot hide an error.
    arguments = (x.at[:, :half].set(0.0), *arguments[1:])
    assert_near(chunked(*arguments)[0] * 100, by_hand(*arguments)[0] * 100, 2e-6)


@pytest.mark.parametrize("chunk", [1, 3, 16, 256])
def test_the_partition_does_not_matter(chunk):
    arguments = make(2, 2, 43, 4, 3, 2, 5)

    def partitioned(*arguments):
        return ssd_chunked(*arguments, chunk=chunk)

    assert_near(pullback(partitioned, arguments), pullback(ssd_scan, arguments))


@pytest.mark.parametrize("cut", [1, 64, 100])
def test_a_sequence_may_be_run_in_two_pieces(cut):
    x, dt, a, b, c, initial = make(3, 2, 130, 4, 3, 2, 5)
    whole = chunked(x, dt, a, b, c, initial)
    first, carried = chunked(x[:, :cut], dt[:, :cut], a, b[:, :cut], c[:, :cut], initial)
    second, last = chunked(x[:, cut:], dt[:, cut:], a, b[:, cut:], c[:, cut:], carried)
    assert_near((jnp.concatenate([first, second], axis=1), last), whole)


def test_steps_follow_the_scan():
    x, dt, a, b, c, state = make(4, 2, 9, 4, 3, 2, 5)
    y, final = scanned(x, dt, a, b, c, state)
    step = jax.jit(ssd_step)
    for k in range(x.shape[1]):
        y_k, state = step(x[:, k], dt[:, k], a, b[:, k], c[:, k], state)
        assert_near(y_k, y[:, k], 1e-6)
    assert_near(state, final, 1e-6)


def test_no_output_depends_on_later_inputs():
    x, dt, a, b, c, initial = make(5, 1, 70, 2, 3, 1, 4)
    y, _ = chunked(x, dt, a, b, c, initial)
    changed, _ = chunked(
        x.at[:, 37].add(1.0), dt.at[:, 37].add(1.0), a, b.at[:, 37].add(1.0), c, initial
    )
    np.testing.assert_array_equal(changed[:, :37], y[:, :37])
    assert np.max(np.abs(changed[:, 37] - y[:, 37])) > 0.1


def test_vmap_equals_a_loop():
    models = [make(seed, 2, 20, 2, 3, 1, 4) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
    together = jax.jit(jax.vmap(ssd_chunked))(*stacked)
    for index, arguments in enumerate(models):
        assert_near([value[index] for value in together], chunked(*arguments), 1e-6)


def test_forward_mode():
    arguments = make(6, 1, 70, 2, 3, 1, 4)
    tangents = make(7, 1, 70, 2, 3, 1, 4)
    assert_near(
        jax.jit(lambda *pair: jax.jvp(ssd_chunked, *pair))(arguments, tangents),
        jax.jit(lambda *pair: jax.jvp(ssd_scan, *pair))(arguments, tangents),
    )


@pytest.mark.parametrize("function", [scanned, chunked])
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
    y, final = chunked(*rounded)
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
    analysis = jax.jit(ssd_chunked).lower(*arguments).compile().cost_analysis()
    assert analysis is not None
    # XLA counts the body of a loop once, whatever the number of chunks.
    chunks = -(-seq // CHUNK)
    counted = chunks * analysis["flops"]
    expected = batch * seq * chunked_flops_per_token(heads, head_dim, state, groups, seq)
    # The analytic count is of matrix products; the decays are the few per cent above it.
    assert 1.0 <= counted / expected < 1.08
