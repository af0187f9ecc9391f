"""The linear time-invariant recurrence: its three evaluations agree, forward and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.blocks.kernels.recurrence import (
    CHUNK,
    SEGMENT,
    chunked_flops_per_token,
    chunked_states,
    step_state,
)


def scan_states(log_decay, u, initial):
    """The definition, one position at a time."""

    def body(state, u_k):
        state = step_state(log_decay, u_k, state)
        return state, state

    initial = initial.astype(jnp.float32)
    final, h = jax.lax.scan(body, initial, jnp.swapaxes(u, 0, 1))
    return jnp.swapaxes(h, 0, 1).astype(u.dtype), final


# Compiled as a whole: run operation by operation, every operation is compiled by itself.
scanned, chunked = jax.jit(scan_states), jax.jit(chunked_states)

# Below, at and above one segment, several segments, and the reach of one matrix product.
LENGTHS = (1, 2, 63, 64, 65, 130, SEGMENT * (CHUNK + 1) + 3)


def make(seed, batch, seq, state, log_decay=None):
    rng = np.random.default_rng(seed)
    if log_decay is None:
        log_decay = -np.exp(rng.normal(-2.0, 2.0, state))
    arrays = (log_decay, rng.normal(size=(batch, seq, state)), rng.normal(size=(batch, state)))
    return tuple(jnp.asarray(value, jnp.float32) for value in arrays)


def by_hand(log_decay, u, initial):
    """The definition in float64, in plain loops."""
    log_decay, u, initial = (np.asarray(value, np.float64) for value in (log_decay, u, initial))
    h = np.zeros_like(u)
    for batch in range(u.shape[0]):
        for n in range(u.shape[2]):
            value = initial[batch, n]
            for k in range(u.shape[1]):
                value = np.exp(log_decay[n]) * value + u[batch, k, n]
                h[batch, k, n] = value
    return h, h[:, -1]


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
    arguments = make(seq, 3, seq, 5)
    reference = pullback(scan_states, arguments)
    assert_near(reference[0], by_hand(*arguments))
    assert_near(pullback(chunked_states, arguments), reference)


def test_extreme_decays():
    arguments = make(0, 2, 150, 5, np.array([0.0, -1e-6, -0.5, -50.0, -1e4]))
    actual, reference = pullback(chunked_states, arguments), pullback(scan_states, arguments)
    desired = by_hand(*arguments)
    for n in range(5):  # one by one: a large state must not hide an error in a small one
        assert_near([value[..., n] for value in actual[0]], [value[..., n] for value in desired])
        assert_near([g[..., n] for g in actual[1]], [g[..., n] for g in reference[1]])


@pytest.mark.parametrize(("segment", "chunk"), [(1, 2), (3, 2), (16, 64)])
def test_the_partition_does_not_matter(segment, chunk):
    # 1 and 2 make the recursion over chunks as deep as it gets.
    arguments = make(1, 2, 43, 3)

    def partitioned(*arguments):
        return chunked_states(*arguments, segment=segment, chunk=chunk)

    assert_near(pullback(partitioned, arguments), pullback(scan_states, arguments))


@pytest.mark.parametrize("cut", [1, 64, 100])
def test_a_sequence_may_be_run_in_two_pieces(cut):
    log_decay, u, initial = make(2, 2, 130, 4)
    whole, final = chunked(log_decay, u, initial)
    first, carried = chunked(log_decay, u[:, :cut], initial)
    second, last = chunked(log_decay, u[:, cut:], carried)
    assert_near((jnp.concatenate([first, second], axis=1), last), (whole, final))


def test_steps_follow_the_scan():
    log_decay, u, state = make(3, 2, 9, 4)
    h, final = scanned(log_decay, u, state)
    for k in range(u.shape[1]):
        state = step_state(log_decay, u[:, k], state)
        assert_near(state, h[:, k], 1e-6)
    assert_near(state, final, 1e-6)


def test_no_state_depends_on_later_inputs():
    log_decay, u, initial = make(4, 1, 70, 2)
    h, _ = chunked(log_decay, u, initial)
    changed, _ = chunked(log_decay, u.at[:, 37].add(1.0), initial)
    np.testing.assert_array_equal(changed[:, :37], h[:, :37])
    assert np.all(np.abs(changed[:, 37] - h[:, 37]) > 0.5)


def test_vmap_equals_a_loop():
    models = [make(seed, 2, 20, 3) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
    together = jax.jit(jax.vmap(chunked_states))(*stacked)
    for index, arguments in enumerate(models):
        assert_near([value[index] for value in together], chunked(*arguments), 1e-6)


def test_forward_mode_and_second_derivatives():
    arguments = make(5, 2, 19, 3)
    tangents = make(6, 2, 19, 3)

    def curvature(function):
        def total(*arguments):
            return sum(jnp.sum(output**2) for output in function(*arguments))

        gradient = jax.grad(total, argnums=(0, 1, 2))
        return jax.jit(lambda *pair: jax.jvp(gradient, *pair))(arguments, tangents)

    assert_near(curvature(chunked_states), curvature(scan_states))


@pytest.mark.parametrize("function", [scanned, chunked])
def test_bfloat16_inputs_are_summed_in_float32(function):
    # 1 + 1/512 is lost at once in a bfloat16 sum; 300 inputs of 1/512 make a visible difference.
    u = jnp.full((1, 300, 2), 2.0**-9, jnp.bfloat16)
    initial = jnp.ones((1, 2), jnp.bfloat16)
    h, final = function(jnp.zeros(2, jnp.bfloat16), u, initial)
    assert h.dtype == jnp.bfloat16
    assert final.dtype == jnp.float32
    assert_near(final, np.full((1, 2), 1 + 300 / 512), 1e-6)


def test_impossible_partitions_are_refused():
    with pytest.raises(ValueError, match="chunk"):
        chunked_states(*make(0, 1, 4, 2), chunk=1)
    with pytest.raises(ValueError, match="segment"):
        chunked_states(*make(0, 1, 4, 2), segment=0)


@pytest.mark.parametrize(("seq", "state"), [(7, 32), (64, 32), (256, 32), (1000, 64), (4096, 64)])
def test_flops_are_those_of_the_program(seq, state):
    batch = 16
    shapes = [(state,), (batch, seq, state), (batch, state)]
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    # Before optimisation: fusing recomputes cheap sums rather than storing them, and XLA counts
    # every repetition.
    counted = jax.jit(chunked_states).lower(*shapes).cost_analysis()["flops"]
    assert counted == pytest.approx(batch * seq * chunked_flops_per_token(state, seq), rel=0.05)


def test_flops_per_token_do_not_grow_with_the_length():
    flops = [chunked_flops_per_token(64, seq) for seq in (2**10, 2**13, 2**20)]
    assert max(flops) < 1.05 * min(flops)
