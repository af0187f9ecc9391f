"""Loops whose number is drawn, with gradients through the last of them."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from tiny_models import SEQ, config_of, make, random_tokens, randomised

from qkvflow.blocks.base import Rows
from qkvflow.errors import UserError
from qkvflow.lm import LanguageModel, count_flops, loss
from qkvflow.runs.config import make_config
from qkvflow.runs.depths import parse_recurrence
from qkvflow.runs.sections import TrainConfig
from qkvflow.schemes.base import ApplyFull
from qkvflow.training.objective import make_objective, step_flops
from qkvflow.training.recurrence import draw

LOOPED: dict[str, Any] = {
    "prelude": 1,
    "coda": 1,
    "injection": "diagonal",
    "depth_dial": "repeat",
    "num_steps": 4,
}
TOKENS, TARGETS = random_tokens(2, SEQ), random_tokens(2, SEQ, seed=1)


def looped(**options: Any) -> LanguageModel:
    return randomised(make(config_of("shared", **{**LOOPED, **options})), 0.05)


def by_hand(model: LanguageModel, free: int, *, cut: bool) -> Array:
    """The loss, step by step, with the graph cut after `free` steps."""
    rows, core = Rows(TOKENS.shape[0], TOKENS.shape[1]), model.core
    e = model.core_input(TOKENS)
    block = core.field.at(1.0)
    x = core.first(e, rows)
    for step in range(model.num_steps):
        x = x if not cut or step != free else jax.lax.stop_gradient(x)
        x = core.step((block,), x, ApplyFull(rows, None), core.before(e))
    logits = model.read(x, rows)
    picked = jnp.take_along_axis(logits, TARGETS.reshape(-1, 1), axis=1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def test_gradients_go_through_the_last_steps_alone():
    model = looped()
    objective = make_objective(TrainConfig(backprop_steps=2))

    def value(model: LanguageModel) -> Array:
        return objective(model, TOKENS, TARGETS, key=None, depth_key=jax.random.key(0))[0]

    found, grads = eqx.filter_jit(eqx.filter_value_and_grad(value))(model)
    hand = eqx.filter_jit(eqx.filter_value_and_grad(lambda m: by_hand(m, 2, cut=True)))
    expected, wanted = hand(model)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)
    # And it is another gradient than that through all steps.
    whole = jax.grad(lambda m: loss(m, TOKENS, TARGETS))(model)
    one, all_steps = grads.prelude[0].field, whole.prelude[0].field
    assert max(
        float(jnp.abs(a - b).max())
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(all_steps), strict=True)
    ) > 1e-4  # fmt: skip


def test_all_steps_are_the_plain_objective():
    """With nothing to run before, gradients reach the embedding through the first state too."""
    model = looped(core_init="input", injection="none")
    objective = make_objective(TrainConfig(backprop_steps=4))

    def value(model: LanguageModel) -> Array:
        return objective(model, TOKENS, TARGETS, key=None, depth_key=jax.random.key(0))[0]

    found = eqx.filter_jit(eqx.filter_grad(value))(model)
    expected = eqx.filter_jit(eqx.filter_grad(lambda m: loss(m, TOKENS, TARGETS)))(model)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("dial", ["repeat", "refine"])
def test_one_program_serves_every_number_of_steps(dial: str):
    model, traced = looped(depth_dial=dial), []

    @eqx.filter_jit
    def states(model: LanguageModel, free: Array) -> Array:
        traced.append(free)
        return model.at_depth(1).integrate(TOKENS, free=free).x

    for steps in (1, 2, 5):
        expected = model.at_depth(steps).integrate(TOKENS).x
        found = states(model, jnp.int32(steps - 1))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert len(traced) == 1


def test_draws():
    keys = jax.random.split(jax.random.key(0), 4000)
    many = np.asarray(
        jax.jit(jax.vmap(lambda key: draw(parse_recurrence("lognormal-poisson"), 8, key)))(keys)
    )
    again = np.asarray(draw(parse_recurrence("lognormal-poisson"), 8, keys[17]))
    assert again == many[17]
    assert many.min() >= 1
    # r - 1 is Poisson with a log-normal mean: its own mean is 8, its variance 8 + 8^2 (e^s^2 - 1).
    deviation = np.sqrt(8 + 64 * np.expm1(0.25))
    assert abs(many.mean() - 9) < 4 * deviation / np.sqrt(len(many))
    assert many.std() == pytest.approx(deviation, rel=0.1)
    for least in (1, 4, 12):
        found = parse_recurrence("lognormal-poisson").mean_steps(8, least)
        bound = 4 * np.maximum(many, least).std() / np.sqrt(len(many))
        assert abs(found - np.maximum(many, least).mean()) < bound
    some = np.asarray(jax.vmap(lambda key: draw(parse_recurrence("3-5"), 8, key))(keys[:200]))
    assert set(some.tolist()) == {3, 4, 5}
    assert parse_recurrence("3-5").mean_steps(8, 4) == pytest.approx(13 / 3)
    assert parse_recurrence("fixed").mean_steps(8, 2) == 8


def test_a_ramp_grows_the_number_that_is_drawn():
    """r = ceil(min(1, 2 s / S) drawn), of one program, and the mean is that of the run's steps."""
    ramp, key = parse_recurrence("fixed+ramp:0.5"), jax.random.key(0)
    at = jax.jit(lambda done: draw(ramp, 8, key, done))
    found = [int(at(step / 20)) for step in range(1, 21)]
    assert found == [1, 2, 3, 4, 4, 5, 6, 7, 8, 8, *[8] * 10]
    assert ramp.mean_steps(8, 3, 20) == pytest.approx(np.maximum(found, 3).mean())
    steps, keys = np.arange(1, 101) / 100, jax.random.split(key, 100)
    drawn = parse_recurrence("2-9+ramp:0.8")
    many = jax.vmap(lambda step: jax.vmap(lambda key: draw(drawn, 8, key, step))(keys))(steps)
    assert drawn.mean_steps(8, 4, 100) == pytest.approx(np.maximum(many, 4).mean(), rel=0.03)
    # The loss is that of the number of loops, and a step costs what its number costs.
    model = looped(num_steps=8)
    train = TrainConfig(recurrence="fixed+ramp:0.5", backprop_steps=2, steps=20)
    objective = make_objective(train)
    value = eqx.filter_jit(
        lambda done: objective(model, TOKENS, TARGETS, key=None, depth_key=key, done=done)[0]
    )
    for step in (4, 20):
        expected = loss(model.at_depth(found[step - 1]), TOKENS, TARGETS)
        assert float(value(jnp.float32(step / 20))) == pytest.approx(float(expected), rel=1e-5)
    one, two = count_flops(model.at_depth(2)), count_flops(model.at_depth(3))
    free = 100 * (two.forward - one.forward)
    mean = np.maximum(found, 2).mean()
    assert step_flops(train, model, 100) == pytest.approx(100 * one.training + (mean - 2) * free)


def test_steps_without_a_gradient_cost_a_third():
    model = looped()
    both = count_flops(model.at_depth(2)), count_flops(model.at_depth(3))
    step = both[1].forward - both[0].forward
    found = step_flops(TrainConfig(backprop_steps=2), model, 100)
    assert found == 100 * (both[0].training + 2 * step)
    whole = step_flops(TrainConfig(), model, 100)
    assert whole - found == 100 * 2 * 2 * step


def test_weights_of_steps_without_a_gradient_are_made_in_every_part():
    model = make(config_of("hypernet", **LOOPED))
    two, three = count_flops(model.at_depth(2)), count_flops(model.at_depth(3))
    once = three.generation - two.generation
    one, four = (
        step_flops(TrainConfig(backprop_steps=2, grad_accum=parts), model, 100) for parts in (1, 4)
    )
    # Two steps of the four are without one.
    assert four - one == 3 * (2 * two.generation + 2 * once) > 0


@pytest.mark.parametrize(
    ("train", "model", "message"),
    [
        ({"recurrence": "4-8"}, {}, "needs train.backprop_steps"),
        ({"recurrence": "8-4", "backprop_steps": 2}, {}, "4-32"),
        ({"recurrence": "poisson", "backprop_steps": 2}, {}, "4-32"),
        ({"recurrence": "fixed+ramp:2", "backprop_steps": 2}, {}, "ramp:0.5"),
        ({"recurrence": "4-8+rump:0.5", "backprop_steps": 2}, {}, "ramp:0.5"),
        ({"backprop_steps": 99}, {}, "more than"),
        ({"backprop_steps": 0}, {}, "backprop_steps"),
        ({"backprop_steps": 2}, {"scheme": "adaptive"}, "fixed scheme"),
        ({"backprop_steps": 2, "depth_jitter": "4-8"}, {}, "depth_jitter"),
    ],
)
def test_what_does_not_go_together_is_refused(
    train: dict[str, Any], model: dict[str, Any], message: str
):
    with pytest.raises(UserError, match=message):
        make_config({"train": train, "model": model})


def test_noise_and_dropout_in_the_steps_before():
    """Keys reach the steps without a gradient: every key gives its own loss, the same one twice."""
    model = dataclasses.replace(looped(core_init="noise", dropout=0.3))
    objective = make_objective(TrainConfig(backprop_steps=1, recurrence="2-3"))

    @eqx.filter_jit
    def value(key: Any) -> Array:
        return objective(model, TOKENS, TARGETS, key=key, depth_key=jax.random.key(3))[0]

    values = [float(value(jax.random.key(seed))) for seed in (0, 1, 0)]
    assert np.isfinite(values).all()
    assert values[0] == values[2] != values[1]
