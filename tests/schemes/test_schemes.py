"""Schemes on linear fields whose flow is known, and the arithmetic of single steps."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.extend.core import jaxprs_in_params
from jaxtyping import Array
from tiny_models import FIELD_CASES, SCHEME_CASES, SEQ, config_of, random_tokens, tiny

from qkvflow.blocks import AbstractMixer, AbstractNorm, Block, Branch, Rows
from qkvflow.blocks.base import Mixes, Role
from qkvflow.errors import Note, UserError
from qkvflow.fields import AbstractField, Shared
from qkvflow.fields.base import at_one
from qkvflow.lm import abstract
from qkvflow.schemes import (
    RK4,
    AbstractScheme,
    AbstractStepScheme,
    Adaptive,
    FixedPoint,
    Heun,
    Midpoint,
    Parallel,
    Sequential,
    Strang,
    default_horizon,
    make_scheme,
)
from qkvflow.schemes.base import ApplyFull, Solution
from qkvflow.schemes.parts.grid import grid, is_grid, stage_times
from qkvflow.schemes.parts.remat import group_length
from qkvflow.zoo import SCHEMES
from qkvflow.zoo.config import COMPOSITIONS, REMATS

ORDERS: dict[type[AbstractStepScheme], int] = {
    Sequential: 1,
    Parallel: 1,
    Midpoint: 2,
    Heun: 2,
    Strang: 2,
    RK4: 4,
}
HORIZON = 1.5


class NoNorm(AbstractNorm):
    scale: Array
    roles: ClassVar[dict[str, Role]] = {"scale": "scale"}

    def __call__(self, x: Array) -> Array:
        return x


class Product(AbstractMixer):
    """The increment x A."""

    mixes: ClassVar[Mixes] = "channels"

    matrix: Array

    def __call__(self, x: Array, rows: Rows, *, key: Any = None) -> Array:
        return x @ self.matrix

    def init_state(self, batch: int, length: int, dtype: Any) -> None:
        return None

    def extend(self, x: Array, rows: Rows, state: None) -> tuple[Array, None]:
        return x @ self.matrix, None

    def flops_per_token(self, context: int) -> int:
        return 2 * self.matrix.size


def linear_block(*matrices: np.ndarray) -> Block:
    norm = NoNorm(jnp.ones(matrices[0].shape[0]))
    return Block(tuple(Branch(norm, Product(jnp.asarray(each))) for each in matrices))


class Swelling(AbstractField):
    """The block's matrices times g(t) = 1 + cos(2 t): they commute at all depths."""

    block: Block

    def stack(self, ts: Any) -> Block:
        factor = 1.0 + jnp.cos(2.0 * jnp.asarray(ts, jnp.result_type(float)))
        return jax.tree.map(
            lambda leaf: leaf[None] * factor.reshape(-1, *[1] * leaf.ndim), self.block
        )

    def at(self, t: Any) -> Block:
        return at_one(self, t)


def integrate(
    scheme: AbstractScheme, field: AbstractField, x: Array, num_steps: int, **options: Any
) -> Solution:
    rows = Rows(x.shape[0], 1)
    return scheme.integrate(
        field,
        x,
        num_steps=num_steps,
        horizon=options.pop("horizon", HORIZON),
        make_apply=lambda key: ApplyFull(rows, None),
        **options,
    )


def matrices() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    a, b = 0.6 * rng.normal(size=(2, 3, 3))
    assert np.abs(a @ b - b @ a).max() > 0.1
    return a, b, rng.normal(size=(2, 3))


def autonomous() -> tuple[AbstractField, np.ndarray, np.ndarray]:
    a, b, x = matrices()
    return Shared(linear_block(a, b)), x, x @ scipy.linalg.expm(HORIZON * (a + b))


def non_autonomous() -> tuple[AbstractField, np.ndarray, np.ndarray]:
    a, _, x = matrices()
    # The integral of 1 + cos(2 t) from 0 to 1; two branches that commute.
    whole = HORIZON * (1.0 + 0.5 * np.sin(2.0))
    return Swelling(linear_block(a, 0.5 * a)), x, x @ scipy.linalg.expm(1.5 * whole * a)


def test_every_scheme_is_measured():
    """A fixed point has no order; it has a test file of its own."""
    assert {type(make_scheme(name)) for name in SCHEMES} <= {*ORDERS, Adaptive, FixedPoint}


FLOWS: dict[str, Callable[[], tuple[AbstractField, np.ndarray, np.ndarray]]] = {
    "autonomous": autonomous,
    "non-autonomous": non_autonomous,
}


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("scheme", ORDERS, ids=lambda each: each.__name__)
def test_order(scheme: Any, flow: str):
    # Powers of two, so that the depths of the grid are exact in float32.
    steps = (16, 32, 64, 128) if ORDERS[scheme] == 4 else (64, 128, 256, 512)
    with jax.enable_x64(True):
        field, x, exact = FLOWS[flow]()
        errors = [
            np.abs(integrate(scheme(), field, jnp.asarray(x), n).x - exact).max() for n in steps
        ]
    assert errors[-1] < errors[0] < 1.0
    order = -np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert order == pytest.approx(ORDERS[scheme], abs=0.15)


@pytest.mark.parametrize("flow", FLOWS)
def test_adaptive_reaches_its_tolerance(flow: str):
    with jax.enable_x64(True):
        field, x, exact = FLOWS[flow]()
        evaluations = []
        for tolerance in (1e-2, 1e-4, 1e-6):
            scheme = Adaptive(rtol=tolerance, atol=tolerance)
            solution = integrate(scheme, field, jnp.asarray(x), 4)
            assert bool(solution.succeeded)
            assert np.abs(solution.x - exact).max() < tolerance * (1.0 + np.abs(exact).max())
            evaluations.append(int(solution.num_evaluations))
    assert evaluations == sorted(evaluations)
    assert evaluations[-1] > 2 * evaluations[0]


def test_adaptive_says_when_it_failed():
    field, x, _ = autonomous()
    scheme = Adaptive(rtol=1e-6, atol=1e-6, max_steps=2)
    with pytest.warns(Note, match="ran out of its 2 steps"):
        assert not bool(integrate(scheme, field, jnp.asarray(x, jnp.float32), 4).succeeded)


def test_unknown_names():
    with pytest.raises(UserError, match="did you mean midpoint"):
        make_scheme("midpont")
    with pytest.raises(UserError, match="did you mean parallel"):
        make_scheme("euler", composition="paralel")
    with pytest.raises(UserError, match="tolerance must be positive"):
        make_scheme("adaptive", tolerance=0.0)


def test_residual_steps_add_whole_increments():
    """With a horizon of N, N steps: x + f, branch after branch or together."""
    a, b, x = matrices()
    field, x = Shared(linear_block(a, b)), jnp.asarray(x, jnp.float32)
    one = np.eye(3)
    for scheme, step in ((Sequential(), (one + a) @ (one + b)), (Parallel(), one + a + b)):
        found = integrate(scheme, field, x, 3, horizon=default_horizon("residual", 3)).x
        np.testing.assert_allclose(found, x @ step @ step @ step, rtol=1e-5)


def test_default_horizon():
    assert default_horizon("residual", 6) == 6.0
    loops = {"residual", "fixed-point"}
    assert {default_horizon(name, 6) for name in loops} == {6.0}
    assert {default_horizon(name, 6) for name in SCHEMES if name not in loops} == {1.0}
    assert {make_scheme("residual", composition=c).default_horizon(6) for c in COMPOSITIONS} == {
        6.0
    }


@pytest.mark.parametrize("scheme", [*ORDERS, Adaptive], ids=lambda each: each.__name__)
def test_saved_states(scheme: type[AbstractScheme]):
    """From the state at the start to the state at the end, after every step."""
    field, x, _ = autonomous()
    x = jnp.asarray(x, jnp.float32)
    made = Adaptive(rtol=1e-5, atol=1e-5) if scheme is Adaptive else scheme()
    solution = integrate(made, field, x, 4, save=True)
    assert solution.trajectory is not None
    assert solution.trajectory.shape == (5, *x.shape)
    np.testing.assert_array_equal(solution.trajectory[0], x)
    np.testing.assert_allclose(solution.trajectory[-1], solution.x, rtol=1e-6)
    half = integrate(made, field, x, 2, horizon=HORIZON / 2).x
    np.testing.assert_allclose(solution.trajectory[2], half, rtol=2e-3)


@pytest.mark.parametrize("scheme", ORDERS, ids=lambda each: each.__name__)
def test_evaluations_are_counted(scheme: Any):
    class Counting(ApplyFull):
        total = 0

        def __call__(self, branch: Branch, x: Array) -> Array:
            Counting.total += 1
            return super().__call__(branch, x)

    field, x, _ = autonomous()
    block, rows = field.at(1.0), Rows(2, 1)
    made = scheme()
    made.step((block,) * len(made.stages), jnp.asarray(x), 0.1, Counting(rows, None))
    whole = Counting.total / len(block.branches)
    # Strang evaluates its two branches four times and twice, and counts whole blocks.
    assert made.evaluations_per_step() == (4 if scheme is Strang else whole)
    solution = integrate(made, field, jnp.asarray(x, jnp.float32), 5)
    assert solution.num_evaluations == 5 * made.evaluations_per_step()


def test_grid():
    np.testing.assert_array_equal(grid(4), np.array([0.25, 0.5, 0.75, 1.0], np.float32))
    np.testing.assert_array_equal(
        stage_times(2, (0.0, 0.5)), np.array([[0.0, 0.25], [0.5, 0.75]], np.float32)
    )
    assert is_grid(grid(6), 6)
    assert not is_grid(grid(6), 3)
    assert not is_grid(jnp.asarray(grid(6)), 6)


def size_of(jaxpr: Any) -> int:
    """Equations of a program, those of the programs inside it included."""
    return sum(1 + sum(map(size_of, jaxprs_in_params(equation.params))) for equation in jaxpr.eqns)


@pytest.mark.parametrize(
    ("field", "scheme"), list(zip(FIELD_CASES, list(SCHEME_CASES) * 2, strict=False))
)
def test_programs_do_not_grow_with_depth(field: str, scheme: str):
    def size(num_steps: int) -> int:
        config = config_of(field, "attention+mlp", scheme, num_steps=num_steps)
        model = abstract(config, vocab_size=5)
        tokens = jax.ShapeDtypeStruct((SEQ,), jnp.int32)
        return size_of(jax.make_jaxpr(lambda model, tokens: model(tokens))(model, tokens).jaxpr)

    assert size(6) == size(24)


@pytest.mark.parametrize("field", ["per-layer", "hypernet"])
def test_rematerialisation_changes_no_gradient(field: str):
    models = [tiny(field, remat=each, num_steps=4) for each in REMATS]
    tokens = random_tokens(2, SEQ)

    @eqx.filter_jit
    @eqx.filter_grad
    def gradient(model: Any) -> Array:
        return jnp.sum(jnp.sin(model(tokens)))

    plain, *others = (jax.tree.leaves(gradient(model)) for model in models)
    for other in others:
        for a, b in zip(plain, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_groups_of_steps():
    lengths = {1: 1, 2: 1, 4: 2, 6: 2, 7: 1, 12: 3, 16: 4, 18: 3, 24: 4, 36: 6}
    assert {n: group_length(n) for n in lengths} == lengths
