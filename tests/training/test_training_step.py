"""The step: the same bits however it is cut, one program for many runs, and a plain loop."""

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
from qkvflow.runs.config import RunConfig
from qkvflow.training import TrainState, make_program, model_key
from qkvflow.training.optim import optimiser
from qkvflow.training.schedule import make_schedule
from qkvflow.training.step import Hyper, dropout_key

VOCAB, BATCH, CONTEXT, MOST = 17, 4, 16, 6
TOKENS = np.random.default_rng(1).integers(0, VOCAB, 500).astype(np.uint8)


class Setting:
    """The program of a configuration, with states and arguments for it."""

    def __init__(self, config: RunConfig) -> None:
        self.program = make_program(config, VOCAB)
        self.multi_step = jax.jit(self.program.multi_step(MOST, on_device=True))
        self._state = self.program.init()

    def state(self) -> TrainState:
        """Arrays of its own every time: they may be donated."""
        return jax.tree.map(jnp.copy, self._state)

    def hyper(self, **changes: Any) -> Hyper:
        return jax.tree.map(jnp.asarray, self.program.hyper()._replace(**changes))

    def run(
        self, seed: int, counts: list[int], multi_step: Any = None
    ) -> tuple[TrainState, np.ndarray]:
        """The last state and all losses of calls with so many steps each."""
        state, losses = self.state(), []
        hyper, tokens = self.hyper(seed=np.int32(seed)), jnp.asarray(TOKENS)
        for count in counts:
            state, metrics = (multi_step or self.multi_step)(state, hyper, tokens, np.int32(count))
            losses.append(np.asarray(metrics.loss)[:count])
        return state, np.concatenate(losses)


@pytest.fixture(scope="module")
def setting(tiny: Callable[..., RunConfig]) -> Setting:
    return Setting(tiny(train={"steps": 20}))


@pytest.fixture(scope="module")
def with_dropout(tiny: Callable[..., RunConfig]) -> Setting:
    return Setting(tiny(model={"dropout": 0.1}, train={"steps": 20}))


def assert_same_bits(one: Any, other: Any) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_any_cut_gives_the_same_bits(with_dropout: Setting):
    # The code as users have it: what the tests use to compile faster rounds differently from
    # program to program.
    faster = "xla_cpu_use_fusion_emitters" in os.environ.get("XLA_FLAGS", "")
    options = {"xla_cpu_use_fusion_emitters": True} if faster else None
    program = with_dropout.program
    many, alone = (
        jax.jit(
            program.multi_step(most, on_device=True), donate_argnums=0, compiler_options=options
        )
        for most in (MOST, 1)
    )
    whole, losses = with_dropout.run(0, [6, 6], many)
    for counts in ([1] * 12, [5, 1, 2, 4], [3, 6, 3]):
        state, cut = with_dropout.run(0, counts, many)
        np.testing.assert_array_equal(cut, losses)
        assert_same_bits(state, whole)
    # Another room for metrics is another program; the steps in it are the same.
    state, cut = with_dropout.run(0, [1] * 12, alone)
    np.testing.assert_array_equal(cut, losses)
    assert_same_bits(state, whole)


def test_agrees_with_a_plain_loop(with_dropout: Setting):
    losses = with_dropout.run(3, [6])[1]
    state, hyper = with_dropout.state(), with_dropout.hyper()
    params, opt_state = state.params, state.opt_state
    loader = BatchLoader(TOKENS, seed=3, batch_size=BATCH, context=CONTEXT)
    optim = with_dropout.program.config.optim
    rule = optimiser(optim, lambda count: make_schedule(optim)(hyper, count))

    @jax.jit
    @jax.value_and_grad
    def gradient(params, inputs, targets, key):
        model = eqx.combine(params, with_dropout.program.static)
        return loss(model, inputs, targets, key=key)

    @jax.jit
    def apply(grads, opt_state, params):
        updates, opt_state = rule.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    for step in range(4):
        inputs, targets = map(jnp.asarray, loader.batch(step))
        key = dropout_key(3, jnp.asarray(step))
        value, grads = gradient(params, inputs, targets, key)
        assert float(value) == pytest.approx(losses[step], rel=2e-5)
        params, opt_state = apply(grads, opt_state, params)


def test_parameters_and_moments_are_updated_in_place(setting: Setting):
    """No copy is kept for the case that a step is left out."""
    program = setting.program
    state, hyper = setting.state(), setting.hyper()
    optim = program.config.optim
    assert optim.name == "adamw"
    assert optim.max_grad_norm > 0
    run = jax.jit(program.multi_step(1, on_device=True), donate_argnums=0)
    text = run.lower(state, hyper, jnp.asarray(TOKENS), jnp.asarray(1)).compile().as_text()
    assert text
    shape = ",".join(map(str, state.params.embedding.shape))
    copies = [line for line in text.splitlines() if f"f32[{shape}]" in line and " copy(" in line]
    assert copies == []


def test_arguments_are_as_good_as_constants(setting: Setting):
    """One program for runs that differ in seed, learning rate, warm-up and steps, against a program
    in which each run's own are constants."""
    runs = ({"seed": 1, "lr": 0.01}, {"seed": 2, "warmup": 0, "steps": 7})
    found = []
    for changes in runs:
        kinds = {"lr": np.float32}
        hyper = setting.hyper(**{k: kinds.get(k, np.int32)(v) for k, v in changes.items()})
        constant = jax.jit(
            lambda state, tokens, count, hyper=hyper: setting.program.multi_step(
                MOST, on_device=True
            )(state, hyper, tokens, count)
        )
        args = jnp.asarray(TOKENS), jnp.asarray(5)
        state, metrics = setting.multi_step(setting.state(), hyper, *args)
        other, expected = constant(setting.state(), *args)
        np.testing.assert_allclose(metrics.loss, expected.loss, rtol=1e-5)
        np.testing.assert_allclose(metrics.lr, expected.lr, rtol=1e-6)
        for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(other.params), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-4)
        found.append(metrics)
    assert float(found[0].loss[0]) != float(found[1].loss[0])


def test_accumulation_is_the_same_gradient(setting: Setting, tiny: Callable[..., RunConfig]):
    parts = Setting(tiny(train={"steps": 20, "grad_accum": 2}))
    np.testing.assert_allclose(parts.run(0, [6])[1], setting.run(0, [6])[1], rtol=1e-5)


def test_batches_from_the_host_are_the_same_steps(setting: Setting):
    state, losses = setting.run(2, [6])
    multi_step = jax.jit(setting.program.multi_step(MOST, on_device=False))
    loader = BatchLoader(TOKENS, seed=2, batch_size=BATCH, context=CONTEXT)
    pairs = [loader.batch(step) for step in range(6)]
    stacked = tuple(jnp.asarray(np.stack(each)) for each in zip(*pairs, strict=True))
    hyper = setting.hyper(seed=np.int32(2))
    after, metrics = multi_step(setting.state(), hyper, stacked, jnp.asarray(6))
    np.testing.assert_allclose(metrics.loss, losses, rtol=1e-5)
    assert int(after.step) == int(state.step) == 6


def test_updates_that_are_not_finite_are_skipped(setting: Setting):
    state, hyper = setting.state(), setting.hyper()
    broken = state._replace(
        params=eqx.tree_at(lambda p: p.embedding, state.params, state.params.embedding * jnp.nan)
    )
    tokens = jnp.asarray(TOKENS)
    after, metrics = setting.multi_step(broken, hyper, tokens, jnp.asarray(3))
    assert not metrics.finite[:3].any()
    assert (int(after.step), int(after.skipped), int(after.skipped_in_row)) == (3, 3, 3)
    assert_same_bits(after.opt_state, broken.opt_state)
    assert_same_bits(after.params, broken.params)
    # A skipped update takes no step of the schedule, and a good one ends the row.
    good = after._replace(params=state.params)
    after, metrics = setting.multi_step(good, hyper, tokens, jnp.asarray(1))
    assert bool(metrics.finite[0])
    first = make_schedule(setting.program.config.optim)(hyper, 0)
    assert float(metrics.lr[0]) == pytest.approx(float(first))
    assert (int(after.step), int(after.skipped), int(after.skipped_in_row)) == (4, 3, 0)


def test_the_same_seed_draws_the_same_batches_for_every_model():
    keys = [jax.random.key_data(model_key(seed)) for seed in (0, 1)]
    assert not np.array_equal(keys[0], keys[1])
    # The number of the step and the seed are all that decides a batch: nothing of the model.
    starts = [BatchLoader(TOKENS, seed=s, batch_size=4, context=16).batch(7)[0] for s in (0, 0, 1)]
    np.testing.assert_array_equal(starts[0], starts[1])
    assert not np.array_equal(starts[0], starts[2])


def test_bfloat16_keeps_float32_master_weights(setting: Setting, tiny: Callable[..., RunConfig]):
    half = Setting(tiny(model={"compute_dtype": "bfloat16"}, train={"steps": 20}))
    state, losses = half.run(0, [6])
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(state.params))
    exact = setting.run(0, [6])[1]
    assert not np.array_equal(losses, exact)
    np.testing.assert_allclose(losses, exact, rtol=0.02)


def test_more_steps_are_not_compiled_again(tiny: Callable[..., RunConfig]):
    """The program of a run does not know its seed, steps, learning rate and warm-up: its text,
    which the compilation cache goes by, is the same."""

    def text(**changes: Any) -> str:
        program = make_program(tiny(**changes), VOCAB)
        args = program.state, program.hyper(), TOKENS, np.int32(1)
        return jax.jit(program.multi_step(MOST, on_device=True)).lower(*args).as_text()

    again = {"train": {"steps": 70, "seed": 3}, "optim": {"lr": 0.1, "warmup": 9}}
    assert text() == text(**again)
    assert text() != text(optim={"weight_decay": 0.3})
