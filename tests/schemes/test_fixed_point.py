"""Fixed points: closed forms, unrolled loops, and what is said where there is none."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from test_schemes import FLOWS, integrate, linear_block
from tiny_models import SEQ, config_of, make, random_tokens

from qkvflow.blocks import Branch, Rows
from qkvflow.errors import Note
from qkvflow.fields import Shared
from qkvflow.lm import LanguageModel, count_flops
from qkvflow.lm.accounting import block_at_end
from qkvflow.schemes import Adaptive, FixedPoint, Parallel, Sequential
from qkvflow.schemes.base import ApplyFull, Solution

C = 0.4


def solve(scheme: FixedPoint, a: Any, e: Any, steps: int, c: float = C) -> Solution:
    """x <- (c x + e)(1 + A), `steps` times in a loop."""
    field, e = Shared(linear_block(a)), jnp.asarray(e)
    options = {"horizon": float(steps), "before": lambda x: c * x + e}
    return integrate(scheme, field, jnp.zeros_like(e), steps, **options)


@pytest.mark.parametrize("steps", [1, 3])
def test_linear_loops_in_closed_form(steps: int):
    """x = e B G with B = 1 + A and G = (1 - c B)^-1, and dM = G dB G for M = B G."""
    rng = np.random.default_rng(1)
    a, e, w = 0.2 * rng.normal(size=(3, 3)), *rng.normal(size=(2, 2, 3))
    b = np.eye(3) + a
    g = np.linalg.inv(np.eye(3) - C * b)
    scheme = FixedPoint(steps=Parallel(True), tolerance=1e-10)
    with jax.enable_x64(True):
        solution = solve(scheme, a, e, steps)
        assert bool(solution.succeeded)
        assert float(solution.residual) < 1e-9
        np.testing.assert_allclose(solution.x, e @ b @ g, rtol=1e-8)
        by_a, by_e = jax.grad(
            lambda a, e: jnp.sum(w * solve(scheme, a, e, steps).x), argnums=(0, 1)
        )(jnp.asarray(a), jnp.asarray(e))
    np.testing.assert_allclose(by_e, w @ (b @ g).T, rtol=1e-7)
    np.testing.assert_allclose(by_a, (e @ g).T @ w @ g.T, rtol=1e-7)


def test_where_there_is_no_fixed_point():
    """x <- x + e: the state moves on, and the adjoint equation is singular."""
    scheme, zero, e = FixedPoint(steps=Sequential(True), max_steps=5), np.zeros((3, 3)), [[1.0] * 3]
    with pytest.warns(Note, match="after 5 loops"):
        solution = solve(scheme, zero, e, 1, c=1.0)
    assert not bool(solution.succeeded)
    assert float(solution.residual) == 1.0
    assert int(solution.num_evaluations) == 5
    gradient = jax.jit(jax.grad(lambda e: jnp.sum(solve(scheme, zero, e, 1, c=1.0).x)))
    assert np.isnan(gradient(jnp.asarray(e))).all()


def contractive(**options: Any) -> LanguageModel:
    """A small transformer whose increments are small beside what is injected."""
    changes = {"injection": "diagonal", "num_steps": 1, "init_std": 0.1, **options}
    model = make(config_of("shared", scheme="fixed-point", tolerance=1e-6, **changes))
    large = jax.tree.map(lambda leaf: 12.0 * leaf, (model.embedding, model.positions))
    return dataclasses.replace(model, embedding=large[0], positions=large[1])


def test_gradient_of_unrolled_loops():
    tokens, targets = random_tokens(2, SEQ), random_tokens(2, SEQ, seed=1)

    @eqx.filter_jit
    @eqx.filter_value_and_grad(has_aux=True)
    def both(model: LanguageModel) -> tuple[Array, Solution]:
        solution = model.integrate(tokens)
        logits = model.logits(solution.x)
        picked = jnp.take_along_axis(logits, targets.reshape(-1, 1), axis=1)
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked[:, 0]), solution

    model = contractive()
    (value, solution), gradient = both(model)
    assert bool(solution.succeeded)
    assert 10 < int(solution.num_evaluations) < 40
    unrolled = dataclasses.replace(
        model, scheme=Sequential(True), num_steps=40, horizon=40.0, remat="block"
    )
    (wanted, _), expected = both(unrolled)
    assert value == pytest.approx(float(wanted), abs=1e-5)
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(gradient), jax.tree.leaves(expected), strict=True
    ):
        size = float(jnp.abs(b).max())
        np.testing.assert_allclose(a, b, atol=1e-3 * size, err_msg=jax.tree_util.keystr(path))


def test_dropout_is_on_and_the_loop_is_one_map():
    """One mask for every loop: with another in each there would be no fixed point."""
    tokens, key = random_tokens(2, SEQ), jax.random.key(3)
    model = contractive(dropout=0.5)

    @eqx.filter_jit
    def run(model: LanguageModel, key: Any) -> Solution:
        return model.integrate(tokens, key=key)

    found, other = run(model, key), run(model, jax.random.key(4))
    assert bool(found.succeeded)
    assert bool(other.succeeded)
    # Without the embedding's own dropout, what differs is inside the blocks.
    inside = dataclasses.replace(model, dropout=0.0)
    first, second = run(inside, key).x, run(inside, jax.random.key(4)).x
    assert np.abs(first - second).max() > 1e-3


def test_dropout_of_an_adaptive_solver_is_on():
    tokens = random_tokens(2, SEQ)
    model = make(config_of("shared", scheme="adaptive", tolerance=1e-3, dropout=0.5))
    inside = dataclasses.replace(model, dropout=0.0)
    run = eqx.filter_jit(lambda key: inside.integrate(tokens, key=key))
    first, second = run(jax.random.key(0)), run(jax.random.key(1))
    assert bool(first.succeeded)
    assert bool(second.succeeded)
    assert np.abs(first.x - second.x).max() > 1e-2


class Counting(ApplyFull):
    """Counts evaluations when they are made, in whatever loop."""

    calls: int = 0

    def __call__(self, branch: Branch, x: Array) -> Array:
        def count() -> None:
            Counting.calls += 1

        jax.debug.callback(count)
        return ApplyFull.__call__(self, branch, x)


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("num_steps", [1, 64])
def test_evaluations_of_an_adaptive_solver_are_those_made(flow: str, num_steps: int):
    field, x, _ = FLOWS[flow]()
    rows, x = Rows(x.shape[0], 1), jnp.asarray(x, jnp.float32)
    Counting.calls = 0
    solution = Adaptive(rtol=1e-4, atol=1e-4).integrate(
        field,
        x,
        num_steps=num_steps,
        horizon=8.0,
        make_apply=lambda key: Counting(rows, None),
    )
    jax.effects_barrier()
    assert Counting.calls == 2 * int(solution.num_evaluations)


def test_evaluations_of_a_fixed_point_are_those_made():
    field, x, _ = FLOWS["autonomous"]()
    rows, x = Rows(x.shape[0], 1), jnp.asarray(x, jnp.float32)
    Counting.calls = 0
    solution = FixedPoint(steps=Parallel(True), tolerance=1e-4).integrate(
        field,
        x,
        num_steps=2,
        horizon=0.5,
        make_apply=lambda key: Counting(rows, None),
        before=lambda z: 0.3 * z + x,
    )
    jax.effects_barrier()
    assert bool(solution.succeeded)
    assert Counting.calls == 2 * int(solution.num_evaluations)


def test_flops_follow_the_evaluations():
    model = make(config_of("hypernet", scheme="fixed-point", injection="concat", num_steps=2))
    few, many = (count_flops(model, evaluations=each) for each in (4.0, 10.0))
    per_block = block_at_end(model).flops_per_token(model.context)
    assert many.forward - few.forward == 6 * (per_block + model.injection.flops_per_token())
    # The loop's weights are made once, however often it is run.
    assert many.generation == few.generation == count_flops(model).generation
