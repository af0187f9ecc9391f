"""The step: the same bits however it is cut, over seeds at once, and against a plain loop."""

import os
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from qkvflow.data.batches import BatchLoader
from qkvflow.lm import loss
from qkvflow.lm.assembly import abstract_model
from qkvflow.runs.config import RunConfig
from qkvflow.training import init_state, make_multi_step, model_key
from qkvflow.training.optim import optimiser
from qkvflow.training.run import initial_params
from qkvflow.training.schedule import make_schedule
from qkvflow.training.step import State, dropout_key, make_host_multi_step

VOCAB, BATCH, CONTEXT, MOST = 17, 4, 16, 6
TOKENS = np.random.default_rng(1).integers(0, VOCAB, 500).astype(np.uint8)


class Setting:
    """A model and its optimiser, and the functions made of them."""

    def __init__(self, config: RunConfig) -> None:
        self.static = abstract_model(config, VOCAB)[1]
        self.schedule = make_schedule(config.optim, 20)
        self.optimiser = optimiser(config.optim, self.schedule)
        init = initial_params(config, VOCAB)
        self.state = jax.jit(lambda seed: init_state(init(seed), self.optimiser))

    def chunk(self, **options: Any) -> Callable[..., Any]:
        options = {"max_steps": MOST, "batch_size": BATCH, "context": CONTEXT, **options}
        return make_multi_step(self.static, self.optimiser, self.schedule, **options)


@pytest.fixture(scope="module")
def setting(tiny: Callable[..., RunConfig]) -> Setting:
    return Setting(tiny(model={"dropout": 0.1}))


def run(chunk: Any, state: State, seed: int, counts: list[int]) -> tuple[State, np.ndarray]:
    losses = []
    for count in counts:
        state, metrics = chunk(state, jnp.asarray(seed), jnp.asarray(TOKENS), jnp.asarray(count))
        losses.append(np.asarray(metrics.loss)[:count])
    return state, np.concatenate(losses)


def assert_same_bits(one: Any, other: Any) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_any_cut_gives_the_same_bits(setting: Setting):
    # The code as users have it: what the tests use to compile faster rounds differently from
    # program to program.
    faster = "xla_cpu_use_fusion_emitters" in os.environ.get("XLA_FLAGS", "")
    options = {"xla_cpu_use_fusion_emitters": True} if faster else None
    chunk = jax.jit(setting.chunk(dropout=True), donate_argnums=0, compiler_options=options)
    whole, losses = run(chunk, setting.state(0), 0, [6, 6])
    for counts in ([1] * 12, [5, 1, 2, 4], [3, 6, 3]):
        state, cut = run(chunk, setting.state(0), 0, counts)
        np.testing.assert_array_equal(cut, losses)
        assert_same_bits(state, whole)
    # Another room for metrics is another program; the steps in it are the same.
    alone = jax.jit(setting.chunk(dropout=True, max_steps=1), compiler_options=options)
    state, cut = run(alone, setting.state(0), 0, [1] * 12)
    np.testing.assert_array_equal(cut, losses)
    assert_same_bits(state, whole)


def test_agrees_with_a_plain_loop(setting: Setting):
    losses = run(jax.jit(setting.chunk(dropout=True)), setting.state(3), 3, [6])[1]
    state = setting.state(3)
    params, opt_state = state.params, state.opt_state
    loader = BatchLoader(TOKENS, seed=3, batch_size=BATCH, context=CONTEXT)

    @jax.jit
    @jax.value_and_grad
    def gradient(params, inputs, targets, key):
        return loss(eqx.combine(params, setting.static), inputs, targets, key=key)

    for step in range(4):
        inputs, targets = map(jnp.asarray, loader.batch(step))
        key = dropout_key(3, jnp.asarray(step))

        value, grads = gradient(params, inputs, targets, key)
        assert float(value) == pytest.approx(losses[step], rel=2e-5)
        updates, opt_state = setting.optimiser.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)


def test_seeds_together_are_seeds_alone(setting: Setting):
    """All seeds of a model as one program, the tokens shared."""
    chunk = setting.chunk()
    seeds = jnp.arange(3)
    states = jax.vmap(setting.state)(seeds)
    together = jax.jit(jax.vmap(chunk, in_axes=(0, 0, None, None)))
    states, metrics = together(states, seeds, jnp.asarray(TOKENS), jnp.asarray(5))
    for seed in range(3):
        state, losses = run(jax.jit(chunk), setting.state(seed), seed, [5])
        np.testing.assert_allclose(metrics.loss[seed, :5], losses, rtol=1e-5)
        for a, b in zip(jax.tree.leaves(states.params), jax.tree.leaves(state.params), strict=True):
            np.testing.assert_allclose(a[seed], b, atol=2e-4)
    assert len({float(x) for x in metrics.loss[:, 0]}) == 3


def test_accumulation_is_the_same_gradient(setting: Setting):
    whole = run(jax.jit(setting.chunk()), setting.state(0), 0, [6])[1]
    parts = run(jax.jit(setting.chunk(grad_accum=2)), setting.state(0), 0, [6])[1]
    np.testing.assert_allclose(parts, whole, rtol=1e-5)


def test_batches_from_the_host_are_the_same_steps(setting: Setting):
    state, losses = run(jax.jit(setting.chunk()), setting.state(2), 2, [6])
    chunk = make_host_multi_step(
        setting.static, setting.optimiser, setting.schedule, max_steps=MOST, batch_size=BATCH
    )
    loader = BatchLoader(TOKENS, seed=2, batch_size=BATCH, context=CONTEXT)
    pairs = [loader.batch(step) for step in range(6)]
    stacked = tuple(jnp.asarray(np.stack(each)) for each in zip(*pairs, strict=True))
    after, metrics = jax.jit(chunk)(setting.state(2), jnp.asarray(2), stacked, jnp.asarray(6))
    np.testing.assert_allclose(metrics.loss, losses, rtol=1e-5)
    assert int(after.step) == int(state.step) == 6


def test_updates_that_are_not_finite_are_skipped(setting: Setting):
    chunk = jax.jit(setting.chunk())
    state = setting.state(0)
    broken = state._replace(
        params=eqx.tree_at(lambda p: p.embedding, state.params, state.params.embedding * jnp.nan)
    )
    after, metrics = chunk(broken, jnp.asarray(0), jnp.asarray(TOKENS), jnp.asarray(3))
    assert not metrics.finite[:3].any()
    assert (int(after.step), int(after.skipped), int(after.skipped_in_row)) == (3, 3, 3)
    assert_same_bits(after.opt_state, broken.opt_state)
    assert_same_bits(after.params, broken.params)
    # A skipped update takes no step of the schedule, and a good one ends the row.
    good = after._replace(params=state.params)
    after, metrics = chunk(good, jnp.asarray(0), jnp.asarray(TOKENS), jnp.asarray(1))
    assert bool(metrics.finite[0])
    assert float(metrics.lr[0]) == pytest.approx(float(setting.schedule(0)))
    assert (int(after.step), int(after.skipped), int(after.skipped_in_row)) == (4, 3, 0)


def test_the_same_seed_draws_the_same_batches_for_every_model(tiny: Callable[..., RunConfig]):
    keys = [jax.random.key_data(model_key(seed)) for seed in (0, 1)]
    assert not np.array_equal(keys[0], keys[1])
    # The number of the step and the seed are all that decides a batch: nothing of the model.
    starts = [BatchLoader(TOKENS, seed=s, batch_size=4, context=16).batch(7)[0] for s in (0, 0, 1)]
    np.testing.assert_array_equal(starts[0], starts[1])
    assert not np.array_equal(starts[0], starts[2])


def test_bfloat16_keeps_float32_master_weights(tiny: Callable[..., RunConfig]):
    half = Setting(tiny(model={"compute_dtype": "bfloat16"}))
    state, losses = run(jax.jit(half.chunk()), half.state(0), 0, [6])
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(state.params))
    full = Setting(tiny())
    exact = run(jax.jit(full.chunk()), full.state(0), 0, [6])[1]
    assert not np.array_equal(losses, exact)
    np.testing.assert_allclose(losses, exact, rtol=0.02)
