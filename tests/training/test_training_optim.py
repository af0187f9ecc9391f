"""Schedules, the arrays that decay, and every optimiser by name."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from qkvflow.errors import UserError
from qkvflow.lm import abstract, build_config
from qkvflow.runs.config import RunConfig
from qkvflow.runs.sections import OptimConfig
from qkvflow.training.optim import (
    averages,
    clip_by_global_norm,
    evaluation_params,
    matrices,
    optimiser,
)
from qkvflow.training.optimisers.base import kinds
from qkvflow.training.schedule import make_schedule
from qkvflow.training.step import Hyper, model_key, split_model
from qkvflow.zoo import OPTIMISERS, configure, entry, names


def schedule_of(optim: OptimConfig, steps: int) -> Callable[[Any], Any]:
    """The learning rate of every update of a run."""
    numbers = np.int32(0), np.float32(optim.lr), np.int32(optim.warmup), np.int32(steps)
    return partial(make_schedule(optim), Hyper(*numbers))


def nanogpt(step: int, optim: OptimConfig, steps: int) -> float:
    """nanoGPT's get_lr, with warm-up from its first version to count from one."""
    if step < optim.warmup:
        return optim.lr * (step + 1) / optim.warmup
    ratio = (step - optim.warmup) / (steps - optim.warmup)
    low = optim.min_lr_ratio * optim.lr
    return low + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (optim.lr - low)


def test_cosine_is_nanogpts():
    optim = OptimConfig(lr=1e-3, warmup=100, min_lr_ratio=0.1)
    schedule = schedule_of(optim, 2000)
    for step in (0, 1, 50, 99, 100, 101, 1000, 1999):
        assert float(schedule(step)) == pytest.approx(nanogpt(step, optim, 2000), rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("linear", [0.5, 1.0, 1.0, 0.55, 0.1]),
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0]),
        ("wsd", [0.5, 1.0, 1.0, 1.0, 0.1]),
    ],
)
def test_other_shapes(kind: str, expected: list[float]):
    schedule = schedule_of(OptimConfig(lr=1.0, schedule=kind, warmup=2), 102)
    found = [float(schedule(step)) for step in (0, 1, 2, 52, 102)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_wsd_decays_over_its_last_share():
    schedule = schedule_of(OptimConfig(lr=1.0, schedule="wsd", warmup=0, min_lr_ratio=0.0), 100)
    found = [float(schedule(step)) for step in (79, 80, 90, 100)]
    np.testing.assert_allclose(found, [1.0, 1.0, 0.5, 0.0], atol=1e-5)


VECTORS = ("bias", "scale", "shift", "log_", "cycles", "delta_bias", ".d")


@pytest.mark.parametrize("name", names())
def test_matrices_decay_and_vectors_do_not(name: str):
    config = configure(entry(name), {"d_model": 32, "num_heads": 2, "num_steps": 3, "context": 8})
    params = eqx.filter(abstract(config, vocab_size=11), lambda x: hasattr(x, "shape"))
    decided = jax.tree_util.tree_flatten_with_path(matrices(params))[0]
    shapes = dict(jax.tree_util.tree_flatten_with_path(params)[0])
    assert len(decided) == len(shapes)
    seen = set()
    for path, decays in decided:
        full = jax.tree_util.keystr(path)
        last = jax.tree_util.keystr(path[-1:])
        vector = any(word in last for word in VECTORS) and ".maps" not in full
        vector |= full.endswith(".recurrence.b")  # One value for each channel.
        assert decays == (not vector), full
        seen.add(decays)
    assert seen == {True, False}
    found = {jax.tree_util.keystr(path): decays for path, decays in decided}
    assert found[".embedding"]
    assert found.get(".positions", True)


def test_a_stack_of_learned_time_frequencies_is_not_a_matrix():
    changes = {"d_model": 32, "num_heads": 2, "num_steps": 3, "time_features": "learned"}
    config = configure({**entry("tong"), "field": "per-layer-hypernet"}, changes)
    params = eqx.filter(abstract(config, vocab_size=11), lambda x: hasattr(x, "shape"))
    decided = jax.tree_util.tree_flatten_with_path(matrices(params))[0]
    cycles = [decays for path, decays in decided if "cycles" in jax.tree_util.keystr(path)]
    assert cycles
    assert not any(cycles)


@pytest.mark.parametrize("max_norm", [0.5, 5.0, 1e3])
def test_clipping_is_optaxs(max_norm: float, key: jax.Array):
    grads = {"a": jax.random.normal(key, (3, 5)), "b": jnp.ones(7)}
    expected, _ = optax.clip_by_global_norm(max_norm).update(grads, optax.EmptyState())
    norm = optax.tree.norm(grads)
    for given in ({}, {"norm": norm}):
        found, _ = clip_by_global_norm(max_norm).update(grads, optax.EmptyState(), **given)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), found, expected)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_every_optimiser_lowers_a_loss(name: str, tiny: Callable[..., RunConfig]):
    lr = {"sgd": 0.5, "lion": 1e-3}.get(name, 1e-2)
    config = tiny(
        model={"num_steps": 1}, optim={"name": name, "lr": lr, "warmup": 1, "schedule": "constant"}
    )
    model = build_config(config.model.config, vocab_size=7, key=model_key(0))
    params, static = split_model(model)
    rule = optimiser(config.optim, schedule_of(config.optim, 20))
    tokens = jnp.arange(32).reshape(2, 16) % 7

    def objective(params):
        logits = eqx.combine(params, static)(tokens)
        return -jnp.mean(jax.nn.log_softmax(logits)[..., 3])

    @jax.jit
    def step(params, state):
        value, grads = jax.value_and_grad(objective)(params)
        updates, state = rule.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    state, values = rule.init(params), []
    for _ in range(12):
        params, state, value = step(params, state)
        values.append(float(value))
    assert values[-1] < values[0] - 0.2
    kept = evaluation_params(config.optim, state, params)
    assert jax.tree.structure(kept) == jax.tree.structure(params)
    same = jnp.array_equal(kept.embedding, params.embedding)
    assert bool(same) == (name != "schedule-free")


def test_an_average_of_what_is_trained_alone(tiny: Callable[..., RunConfig]):
    """Of arrays that are left out there is no mean; the others have the one they have alone."""
    config = tiny(model={"num_steps": 1}, optim={"name": "schedule-free", "beta2": 0.9})
    params = split_model(build_config(config.model.config, vocab_size=7, key=model_key(0)))[0]
    grads = jax.tree.map(jnp.sin, params)
    optim = dataclasses.replace(config.optim, max_grad_norm=0.0)
    rules = {of: optimiser(optim, optax.constant_schedule(0.1), of) for of in ("gates", "all")}
    kept = {}
    for of, rule in rules.items():
        state, now = rule.init(params), params
        for _ in range(3):
            updates, state = rule.update(grads, state, now)
            now = optax.apply_updates(now, updates)
        assert averages(state)
        kept[of] = evaluation_params(optim, state, now)
    np.testing.assert_array_equal(kept["gates"].embedding, params.embedding)
    np.testing.assert_array_equal(kept["gates"].norm.block.scale, kept["all"].norm.block.scale)
    assert not np.array_equal(kept["gates"].norm.block.scale, params.norm.block.scale)


def test_unknown_names_are_refused_however_they_come():
    with pytest.raises(UserError, match="unknown optimiser 'adam'; did you mean adamw"):
        OptimConfig(name="adam")
    optim = OptimConfig()
    object.__setattr__(optim, "name", "adam")
    with pytest.raises(UserError, match="unknown optimiser 'adam'; did you mean adamw"):
        optimiser(optim, optax.constant_schedule(0.1))
    object.__setattr__(optim, "schedule", "cosin")
    with pytest.raises(UserError, match="unknown schedule 'cosin'; did you mean cosine"):
        make_schedule(optim)


# Muon

MODELS: dict[str, dict[str, Any]] = {
    "per-layer": {"block": "attention+mlp", "tied": False},
    "basis": {"block": "attention+swiglu"},
    "low-rank": {"block": "attention+ssm"},
    "gated": {"block": "attention+selective-ssm", "final_norm": "time"},
    "hypernet": {"block": "attention+ssm", "time_features": "learned"},
    "shared": {"lora": "qkv:depth,down", "lora_rank": 2},
}


def kind_of(path: str) -> str:
    """By the names in a path, in which blocks, gates and generators call their arrays so."""
    if ".maps" in path or path in (".embedding", ".positions", ".head"):
        return "matrix"
    if ".gates" in path or ".embedding." in path:
        return "matrix" if path.endswith(".weight") else "vector"
    if ".factors" in path or ".adapters" in path:
        return "block matrix"
    if path.endswith((".weight", ".b", ".c")):
        return "block matrix"
    return "matrix" if path.endswith(".kernel") else "vector"


@pytest.fixture(scope="module", params=MODELS)
def params(request: pytest.FixtureRequest) -> Any:
    small = {"d_model": 16, "num_heads": 2, "num_steps": 2, "context": 8, "d_time": 4, "rank": 2}
    changes = {**small, "num_frequencies": 2, "num_basis": 2, "d_state": 4}
    config = configure({"field": request.param, **MODELS[request.param]}, changes)
    return split_model(build_config(config, vocab_size=11, key=model_key(0)))[0]


def updates(params: Any, grads: Any, **options: Any) -> dict[str, tuple[np.ndarray, ...]]:
    """By path: the first update, the gradient and the parameter. The learning rate is 0.1."""
    optim = OptimConfig(name="muon", max_grad_norm=0.0, **options)
    rule = optimiser(optim, optax.constant_schedule(0.1))
    made = jax.jit(lambda params, grads: rule.update(grads, rule.init(params), params)[0])
    found = jax.tree_util.tree_leaves_with_path(made(params, grads))
    rest = zip(jax.tree.leaves(grads), jax.tree.leaves(params), strict=True)
    return {
        jax.tree_util.keystr(path): tuple(map(np.asarray, (update, *others)))
        for (path, update), others in zip(found, rest, strict=True)
    }


def test_kinds(params: Any):
    found = jax.tree_util.tree_leaves_with_path(kinds(params))
    for path, kind in found:
        name = jax.tree_util.keystr(path)
        assert kind == kind_of(name), name
    assert {kind for _, kind in found} == {"block matrix", "matrix", "vector"}


def test_muon_decays_all_matrices_and_no_vector(params: Any):
    still = jax.tree.map(jnp.zeros_like, params)
    for path, (update, _, value) in updates(params, still, weight_decay=0.5).items():
        expected = 0.0 * value if kind_of(path) == "vector" else -0.1 * 0.5 * value
        np.testing.assert_allclose(update, expected, rtol=1e-5, atol=1e-8, err_msg=path)


def test_muon_orthogonalises_the_matrices_of_blocks_and_nothing_else(params: Any):
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    drawn = [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
    grads = jax.tree.unflatten(structure, drawn)
    for path, (update, grad, _) in updates(params, grads, weight_decay=0.0).items():
        if kind_of(path) != "block matrix":
            # The first step of AdamW goes by the sign alone.
            np.testing.assert_allclose(update, -0.1 * np.sign(grad), atol=1e-4, err_msg=path)
            continue
        size = 0.2 * 0.1 * max(update.shape[-2:]) ** 0.5
        singular = np.linalg.svd(update, compute_uv=False) / size
        # Newton-Schulz with Muon's coefficients leaves singular values within a third of 1.
        assert singular.min() > 0.6, path
        assert singular.max() < 1.3, path
