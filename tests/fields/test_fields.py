"""Fields: how a block's weights depend on depth."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from jaxtyping import Array
from scipy.interpolate import BSpline
from tiny_models import BLOCK_CASES, FIELD_CASES, TINY, config_of, randomised, tiny

from qkvflow.blocks import Block
from qkvflow.errors import UserError
from qkvflow.fields import FrozenTime, Hypernet, PerLayer, Shared, stack_layers
from qkvflow.fields.base import take
from qkvflow.fields.basis import basis_functions, constant_coefficients
from qkvflow.fields.hypernet import Generator, is_generator
from qkvflow.fields.parts.gates import GATES, ChannelGate, init_gate
from qkvflow.fields.parts.time import TIME_FEATURES, hats, make_time_features
from qkvflow.fields.wrappers.precomputed import precompute
from qkvflow.lm import build_config
from qkvflow.lm.assembly import init_block
from qkvflow.schemes.parts.grid import grid
from qkvflow.zoo import ModelConfig, configure

DEPTHS = np.array([0.0, 0.1, 1 / 3, 0.37, 0.5, 2 / 3, 0.9, 1.0], np.float32)


def field_of(name: str, block: str = "attention+mlp", **overrides: Any) -> Any:
    return randomised(tiny(name, block, **overrides).field, 0.05)


def assert_trees_close(a: Any, b: Any, atol: float = 1e-6) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=atol)


@eqx.filter_jit
def at(field: Any, t: Any) -> Any:
    return field.at(t)


@eqx.filter_jit
def stack(field: Any, ts: np.ndarray) -> Any:
    return field.stack(ts)


@pytest.mark.parametrize(
    ("field", "block"), list(zip(FIELD_CASES, list(BLOCK_CASES) * 2, strict=False))
)
def test_at_equals_stack(field: str, block: str):
    made = field_of(field, block)
    stacked = stack(made, DEPTHS)
    shapes = jax.tree.leaves(jax.tree.map(jnp.shape, init_block(config_of(block=block), KEY)))
    if field == "cycle":  # Its block is all layers of a loop.
        shapes *= config_of(field).layers_per_loop
    if field == "modulated":  # A loop too, with a scale for every branch.
        shapes = jax.tree.leaves(jax.tree.map(jnp.shape, made.block))
    if field == "universal":  # The coordinates of the step come first.
        shapes = [TINY["d_model"], *shapes]
    assert jax.tree.leaves(jax.tree.map(lambda leaf: leaf.shape[1:], stacked)) == shapes
    for i, t in enumerate(jnp.asarray(DEPTHS)):
        assert_trees_close(take(stacked, i), at(made, t))
    # A field may recognise its own grid.
    own = stack(made, grid(3))
    for i, t in enumerate(jnp.asarray(grid(3))):
        assert_trees_close(take(own, i), at(made, t))


KEY = jax.random.key(0)


@pytest.mark.parametrize("field", FIELD_CASES)
def test_dependence_on_depth(field: str):
    """All depths alike for what is shared or frozen, and different for the rest."""
    blocks = stack(field_of(field), DEPTHS)
    spread = max(np.ptp(leaf, axis=0).max() for leaf in jax.tree.leaves(blocks))
    if field in ("shared", "cycle", "frozen-time"):
        assert spread == 0.0
    else:
        assert spread > 1e-3


def test_frozen_time_is_the_field_at_that_depth():
    for name in ("gated", "hypernet", "per-layer"):
        inner = field_of(name)
        frozen = FrozenTime(inner, 0.4)
        for block in (frozen.at(0.9), take(frozen.stack(DEPTHS), 3)):
            assert_trees_close(block, inner.at(np.float32(0.4)))


def test_per_layer_on_its_own_grid():
    """The layers themselves, bit by bit; between them straight lines; the first one before."""
    layers = [Shared(init_block(config_of(), jax.random.key(seed))) for seed in range(3)]
    field = stack_layers([*layers])
    own = field.stack(grid(3))
    for i, layer in enumerate(layers):
        for a, b in zip(jax.tree.leaves(take(own, i)), jax.tree.leaves(layer.block), strict=True):
            np.testing.assert_array_equal(a, b)
        assert_trees_close(field.at(grid(3)[i]), layer.block)
    first, second, _ = (layer.block for layer in layers)
    mixed = jax.tree.map(lambda a, b: 0.75 * a + 0.25 * b, first, second)
    assert_trees_close(field.at(np.float32((1 + 0.25) / 3)), mixed)
    assert_trees_close(field.at(np.float32(0.1)), first)
    assert_trees_close(field.at(np.float32(0.0)), first)


def test_a_single_layer():
    layer = init_block(config_of(), KEY)
    field = stack_layers([Shared(layer)])
    for t in (0.0, 0.5, 1.0):
        assert_trees_close(field.at(t), layer)


def test_per_layer_of_hypernetworks():
    made = [field_of("hypernet"), randomised(field_of("hypernet"), 0.1, seed=3)]
    field = stack_layers(made)
    assert isinstance(field, PerLayer)
    assert isinstance(field.layers, Hypernet)
    stacked = stack(field, grid(2))
    for i, (layer, t) in enumerate(zip(made, grid(2), strict=True)):
        assert_trees_close(take(stacked, i), at(layer, jnp.asarray(t)))
    t = jnp.asarray(0.75)
    middle = jax.tree.map(lambda a, b: 0.5 * (a + b), *(at(each, t) for each in made))
    assert_trees_close(at(field, t), middle)


def products(jaxpr: Any) -> int:
    return sum(
        (equation.primitive.name == "dot_general")
        + sum(map(products, jaxprs_in_params(equation.params)))
        for equation in jaxpr.eqns
    )


@pytest.mark.parametrize("depth", [1, 6, 24])
def test_hypernetwork_makes_each_weight_in_one_product(depth: int):
    """Whatever the depth: two products for each embedding and one for each weight."""
    field = tiny("hypernet").field
    generators = [
        each for each in jax.tree.leaves(field, is_leaf=is_generator) if is_generator(each)
    ]
    assert all(isinstance(each, Generator) for each in generators)
    weights = sum(len(jax.tree.leaves(each.maps)) for each in generators)
    program = jax.make_jaxpr(lambda field: field.stack(grid(depth)))(field)
    assert products(program.jaxpr) == 2 * len(generators) + weights


def test_low_rank_starts_as_the_shared_block():
    blocks = tiny("low-rank").field.stack(DEPTHS)
    for leaf in jax.tree.leaves(blocks):
        np.testing.assert_allclose(leaf, np.broadcast_to(leaf[:1], leaf.shape), atol=1e-7)


def test_low_rank_terms_have_their_rank():
    field = field_of("low-rank", rank=2)
    blocks = field.stack(grid(3))
    base = field.groups.branches[1].mixer.up.base.weight
    for weight in blocks.branches[1].mixer.up.weight:
        singular = np.linalg.svd(weight - base, compute_uv=False)
        assert (singular > 1e-4 * singular[0]).sum() == 2


# Gates


@pytest.mark.parametrize("kind", [each for each in GATES if each != "time-indexed"])
@pytest.mark.parametrize("squash", ["sigmoid", "centred"])
def test_gates_start_as_documented(kind: str, squash: str):
    features = make_time_features("sinusoidal", num_frequencies=3, num_layers=3, key=KEY)
    made = init_gate(kind, (5, 7), num_features=7, activation=squash, rank=2, key=KEY)
    factor = np.broadcast_to(made(features(DEPTHS)), (len(DEPTHS), 5, 7))
    if squash == "centred":
        np.testing.assert_array_equal(factor, 1.0)
        assert made.start() == 1.0
    else:
        start = 0.25 if kind == "both" else 0.5
        assert made.start() == start
        assert factor.mean() == pytest.approx(start, rel=0.2)
        assert factor.std(axis=0).max() > 0.01
    moved = randomised(made)(features(DEPTHS))
    across = np.broadcast_to(moved, (len(DEPTHS), 5, 7))
    assert (across > 0.0).all()
    assert (np.ptp(across, axis=1).max() > 0.0) == (kind != "output")
    assert (np.ptp(across, axis=2).max() > 0.0) == (kind != "input")


TIME_INDEXED = {
    "attention": {"qkv": 0, "out": 1},
    "mlp": {"up": 0, "down": 0},
    "swiglu": {"gate": 0, "up": 0, "down": 0},
    "ssm": {"b": 0, "c": 1, "d": 0, "log_a": 0, "log_delta": 0},
    "selective-ssm": {"in_proj": 0, "out_proj": 1, "log_a": 0, "d": 0},
}
"""The axis of each weight that the time-indexed gates scale: 0 for input channels, 1 for output."""


@pytest.mark.parametrize("mixer", TIME_INDEXED)
def test_time_indexed_gates_sit_where_they_were_published(mixer: str):
    field: Any = build_config(config_of("gated", block=mixer), vocab_size=3, key=KEY).field
    found = {}
    for path, gate in jax.tree_util.tree_leaves_with_path(
        field.gates, is_leaf=lambda x: isinstance(x, ChannelGate)
    ):
        *_, place, _, array = [
            str(getattr(step, "name", getattr(step, "key", ""))) for step in path
        ]
        found[place if array == "weight" else array] = gate.axis
    assert found == TIME_INDEXED[mixer]


def test_older_configurations_name_the_gates_otherwise():
    assert configure({}, {"gate": "documents"}) == configure({}, {"gate": "time-indexed"})


def test_centred_gates_leave_the_block_as_it_was():
    config = config_of("gated", gate_activation="centred")
    key = jax.random.key(0)
    model = build_config(config, vocab_size=3, key=key)
    # The same keys as the assembly draws, for the block that is gated.
    key_field = jax.random.split(key, 5)[2]
    block = init_block(config, jax.random.split(key_field, 3)[0])
    for t in (0.2, 1.0):
        assert_trees_close(model.field.at(t), block)


def test_unknown_members():
    features = make_time_features("raw", num_frequencies=3, num_layers=3, key=KEY)
    with pytest.raises(UserError, match="did you mean sinusoidal"):
        make_time_features("sinusoid", num_frequencies=3, num_layers=3, key=KEY)
    for kind, squash in (("outputs", "sigmoid"), ("output", "sigmoids")):
        with pytest.raises(UserError, match="did you mean"):
            init_gate(kind, (2, 2), num_features=features.size, activation=squash, rank=1, key=KEY)
    with pytest.raises(UserError, match="did you mean cosine"):
        basis_functions("cosines", DEPTHS, 3)


# Functions of t


@pytest.mark.parametrize("kind", TIME_FEATURES)
def test_time_features(kind: str):
    made = make_time_features(kind, num_frequencies=4, num_layers=3, key=KEY)
    found = made(DEPTHS)
    assert found.shape == (len(DEPTHS), made.size)
    assert made.size == {"sinusoidal": 9, "learned": 9, "raw": 1, "layers": 3, "step": 18}[kind]
    if kind != "layers":
        np.testing.assert_allclose(found[:, 0], DEPTHS)
    assert np.abs(found).max() <= 1.0 + 1e-6
    assert len(np.unique(np.round(found, 6), axis=0)) >= len(DEPTHS) - 2


def test_hats_interpolate():
    np.testing.assert_allclose(hats(grid(4), 4), np.eye(4), atol=1e-6)
    np.testing.assert_allclose(hats(DEPTHS, 4).sum(axis=1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(hats(np.array([0.0], np.float32), 4), [[1.0, 0.0, 0.0, 0.0]])
    np.testing.assert_allclose(
        hats(np.array([0.4], np.float32), 4), [[0.4, 0.6, 0.0, 0.0]], atol=1e-6
    )


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_bsplines_match_scipy(size: int):
    degree = min(3, size - 1)
    knots = np.r_[np.zeros(degree), np.linspace(0, 1, size - degree + 1), np.ones(degree)]
    expected = BSpline.design_matrix(DEPTHS.astype(float), knots, degree).toarray()
    found = basis_functions("bspline", DEPTHS, size)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-6)


def test_cosine_and_chebyshev_closed_forms():
    t = DEPTHS.astype(float)
    cosine = np.stack([np.cos(np.pi * k * t) for k in range(5)], axis=1)
    np.testing.assert_allclose(basis_functions("cosine", DEPTHS, 5), cosine, atol=2e-6)
    x = 2 * t - 1
    polynomials = np.stack([x**0, x, 2 * x**2 - 1, 4 * x**3 - 3 * x], axis=1)
    np.testing.assert_allclose(basis_functions("chebyshev", DEPTHS, 4), polynomials, atol=2e-6)


@pytest.mark.parametrize("kind", ["cosine", "chebyshev", "bspline"])
def test_constant_coefficients(kind: str):
    phi = basis_functions(kind, DEPTHS, 5)
    np.testing.assert_allclose(phi @ constant_coefficients(kind, 5), 1.0, atol=1e-6)


# Tables


def test_tabulated_fields_answer_for_their_depths():
    field = field_of("gated")
    starts = np.array([0.0, 1 / 3, 2 / 3], np.float32)
    table = precompute(field, [grid(3), starts])
    assert_trees_close(table.stack(grid(3)), field.stack(grid(3)))
    assert_trees_close(table.stack(starts), field.stack(starts))
    assert_trees_close(table.at(0.0), field.at(0.0))
    with pytest.raises(ValueError, match="depth"):
        table.at(0.123)


def block_of(config: ModelConfig) -> Block:
    return init_block(config, KEY)


def test_shared_is_one_block():
    block = block_of(ModelConfig(**TINY))
    field = Shared(block)
    assert field.at(0.3) is block
    leading: list[Array] = jax.tree.leaves(field.stack(grid(4)))
    assert {leaf.shape[0] for leaf in leading} == {4}
