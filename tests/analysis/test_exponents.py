"""Lyapunov exponents on systems whose exponents are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear import linear_model, symmetric
from scipy.linalg import expm
from tiny_models import random_tokens, tiny

from qkvflow.analysis import depth_flow, exponents, kaplan_yorke, lyapunov
from qkvflow.analysis.parts.flow import embedded, entering
from qkvflow.blocks.base import Rows
from qkvflow.blocks.kernels import forward_mode
from qkvflow.lm import LanguageModel
from qkvflow.schemes.base import ApplyFull

KEY = jax.random.key(0)
TOKENS = np.array([0, 1, 2])


def test_a_linear_field_has_the_exponents_that_were_chosen():
    chosen = [0.7, 0.25, 0.0, -0.4, -1.1]
    found = lyapunov(linear_model(symmetric(chosen)), TOKENS, k=None)
    # One set for each of the three tokens, which do not act on each other.
    np.testing.assert_allclose(found.exponents, np.repeat(chosen, 3), atol=1e-3)
    # Cumulated over the steps they are straight lines.
    np.testing.assert_allclose(
        found.growth, np.repeat(chosen, 3)[None] / 8 * np.ones((8, 1)), atol=1e-3
    )
    # 3 tokens: 2.1 + 0.75 + 0 is used up by -0.4, three times, and part of one -1.1.
    assert found.dimension == pytest.approx(12 + (2.1 + 0.75 - 1.2) / 1.1, abs=1e-2)


def test_the_leading_ones_alone():
    chosen = [0.7, 0.25, 0.0, -0.4, -1.1]
    found = lyapunov(linear_model(symmetric(chosen)), TOKENS, k=4)
    np.testing.assert_allclose(found.exponents, [0.7, 0.7, 0.7, 0.25], atol=1e-3)
    assert np.isnan(found.dimension)
    assert "at least 4" in " ".join(found.findings())


def test_a_rotation_has_no_exponents():
    a = np.zeros((4, 4))
    a[0, 1], a[2, 3] = 2.0, 0.5
    found = lyapunov(linear_model(a - a.T, num_steps=16), TOKENS, k=None)
    np.testing.assert_allclose(found.exponents, 0.0, atol=1e-3)


def test_the_sensitivity_of_a_linear_field_is_the_size_of_its_exponential():
    a = np.random.default_rng(3).normal(size=(4, 4)) / 2
    found = lyapunov(linear_model(a), TOKENS, k=1, position=1)
    flow = expm(a)
    expected = np.linalg.norm(flow) / 2.0
    np.testing.assert_allclose(found.sensitivity[1], expected, rtol=1e-4)
    np.testing.assert_array_equal(found.sensitivity[[0, 2]], 0.0)
    np.testing.assert_allclose(found.largest[1], np.linalg.norm(flow, ord=2), rtol=1e-4)
    # Alone or among others: a token of this field does not feel the rest.
    np.testing.assert_allclose(found.own_exponents, np.full(3, found.exponents[0]), atol=1e-3)


def test_over_a_long_time_exponents_are_real_parts_of_eigenvalues():
    """Of any matrix, in one pass, from a random start: here a pair that turns, and not normal."""
    a = np.array(
        [[0.3, 2.0, 0.0, 0.5], [-2.0, 0.3, 1.0, 0.0], [0.0, 0.0, -0.2, 1.5], [0, 0, 0, -0.9]]
    )
    time, num_steps = 3000.0, 15000
    step = jnp.asarray(expm(a * time / num_steps), jnp.float32)
    run = jax.jit(lambda x: exponents(lambda x, i: step @ x, x, num_steps, key=KEY, time=time))
    found = run(jnp.zeros(4))
    np.testing.assert_allclose(found.values, [0.3, 0.3, -0.2, -0.9], atol=1e-3)


def test_lorenz():
    """0.906, 0, -14.57 (Sprott 2003) within 2 %, through the same code."""

    def velocity(x: jax.Array) -> jax.Array:
        return jnp.stack(
            [10.0 * (x[1] - x[0]), x[0] * (28.0 - x[2]) - x[1], x[0] * x[1] - 8.0 / 3.0 * x[2]]
        )

    dt = 0.01

    def step(x: jax.Array, i: jax.Array) -> jax.Array:
        k1 = velocity(x)
        k2 = velocity(x + dt / 2 * k1)
        k3 = velocity(x + dt / 2 * k2)
        k4 = velocity(x + dt * k3)
        return x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    @jax.jit
    def run(starts: jax.Array) -> jax.Array:
        def one(x: jax.Array, key: jax.Array) -> jax.Array:
            x = jax.lax.fori_loop(0, 2000, lambda i, x: step(x, i), x)
            return exponents(step, x, 15000, key=key, time=15000 * dt).values

        return jax.vmap(one)(starts, jax.random.split(KEY, len(starts)))

    starts = jnp.asarray(
        np.random.default_rng(0).normal((1.0, 1.0, 20.0), size=(24, 3)), jnp.float32
    )
    first, second, third = np.asarray(run(starts), np.float64).mean(0)
    assert first == pytest.approx(0.906, rel=0.02)
    assert second == pytest.approx(0.0, abs=0.02 * 0.906)
    assert third == pytest.approx(-14.57, rel=0.02)
    dimension = kaplan_yorke(np.array([first, second, third]), complete=True)
    assert dimension == pytest.approx(2.062, rel=0.002)


def whole_jacobian(model: LanguageModel, tokens: np.ndarray) -> np.ndarray:
    """dx(1) / dx(0), made in full: what the analysis never does."""
    flow, x0 = depth_flow(model, len(tokens)), embedded(model, tokens)

    def end(flat: jax.Array) -> jax.Array:
        steps = jnp.arange(flow.num_steps)
        return jax.lax.scan(lambda x, i: (flow(x, i), None), flat.reshape(x0.shape), steps)[
            0
        ].reshape(-1)

    return np.asarray(jax.jit(jax.jacfwd(end))(x0.reshape(-1)), np.float64)


@pytest.mark.parametrize(
    ("field", "block", "scheme"),
    [
        ("per-layer", "attention+mlp", "residual"),
        ("gated", "attention+ssm", "heun"),
    ],
)
def test_exponents_are_those_of_the_whole_jacobian(field: str, block: str, scheme: str):
    model = tiny(field, block, scheme)
    tokens = np.asarray(random_tokens(4))
    jacobian = whole_jacobian(model, tokens)
    exact = np.log(np.linalg.svd(jacobian, compute_uv=False))
    found = lyapunov(model, tokens, k=None)
    assert found.size == len(exact) == 4 * model.d_model
    np.testing.assert_allclose(found.exponents[:32], exact[:32], atol=2e-3)
    np.testing.assert_allclose(found.exponents, exact, atol=0.05)
    np.testing.assert_allclose(found.exponents.sum(), exact.sum(), atol=1e-2)
    blocks = jacobian.reshape(4, model.d_model, 4, model.d_model)[3]
    sizes = np.sqrt((blocks**2).sum((0, 2)) / model.d_model)
    np.testing.assert_allclose(found.sensitivity, sizes, rtol=1e-3)
    largest = [np.linalg.norm(blocks[:, j], ord=2) for j in range(4)]
    np.testing.assert_allclose(found.largest, largest, rtol=1e-3)
    flow, x0 = depth_flow(model, 4), embedded(model, tokens)
    leading = jax.jit(lambda x: exponents(flow, x, 3, 6, key=KEY, passes=10))(x0)
    np.testing.assert_allclose(leading.values, exact[:6], atol=2e-3)


@pytest.mark.parametrize("start", ["input", "noise", "zeros"])
def test_a_text_is_felt_by_whatever_way_it_enters(start: str):
    """Sensitivity to the state before the core, which is injected before every step too."""
    model = tiny("shared", injection="add", core_init=start)
    tokens = np.asarray(random_tokens(4))
    found = lyapunov(model, tokens, k=2)
    rows = Rows(1, 4)

    def end(e: jax.Array) -> jax.Array:
        return model.core.integrate(e, rows, make_apply=lambda _: ApplyFull(rows, None)).x[3]

    whole = jax.jit(jax.jacrev(end))(entering(model, tokens))
    sizes = np.sqrt(np.square(np.asarray(whole, np.float64)).sum((0, 2)) / model.d_model)
    np.testing.assert_allclose(found.sensitivity, sizes, rtol=1e-3)


def test_their_sum_is_the_integrated_trace():
    """Liouville: the logarithm of the volume grows by the trace of the Jacobian of T f."""
    model = tiny("hypernet", scheme="rk4").at_depth(48)
    tokens = np.asarray(random_tokens(3))
    flow, x0 = depth_flow(model, 3), embedded(model, tokens)
    states = np.asarray(model.trajectory(jnp.asarray(tokens)))

    @jax.jit
    def trace(x: jax.Array, t: jax.Array) -> jax.Array:
        block = model.field.at(t)

        def f(flat: jax.Array) -> jax.Array:
            x = flat.reshape(x0.shape)
            with forward_mode():
                first, second = (branch(x, flow.rows) for branch in block.branches)
            return (first + second).reshape(-1)

        return model.horizon * jnp.trace(jax.jacfwd(f)(x.reshape(-1)))

    along = [float(trace(x, jnp.float32(i / 48))) for i, x in enumerate(states)]
    weights = np.array([1.0, *[4.0, 2.0] * 23, 4.0, 1.0]) / 144.0  # Simpson's rule
    run = jax.jit(lambda x: exponents(flow, x, 48, key=KEY))
    total = float(run(x0).values.sum())
    assert abs(total) > 0.1
    assert total == pytest.approx(float(weights @ np.array(along)), rel=1e-3)


@pytest.mark.parametrize(
    ("values", "complete", "expected"),
    [
        ([0.906, 0.0, -14.572], True, 2 + 0.906 / 14.572),
        ([-0.1, -2.0], True, 0.0),
        ([0.5, 0.1], True, 2.0),
        ([0.5, 0.1], False, np.nan),
        ([1.0, -0.5, -0.5, -1.0], True, 3.0),
    ],
)
def test_kaplan_yorke(values: list[float], complete: bool, expected: float):
    found = kaplan_yorke(np.array(values), complete=complete)
    np.testing.assert_allclose(found, expected, atol=1e-12)
