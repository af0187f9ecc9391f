"""Depth in segments: against one per-layer model of all layers, loops against the layers written
out, injections against closed forms."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from tiny_models import SEQ, TINY, VOCAB, config_of, make, random_tokens, randomised, tiny

from qkvflow.analysis import depth_flow, lyapunov, trajectory
from qkvflow.errors import UserError
from qkvflow.fields import PerLayer, Shared, stack_layers
from qkvflow.fields.base import take
from qkvflow.generation import (
    exit_quality,
    generate,
    generate_speculative,
    make_early_exit,
)
from qkvflow.injections.diagonal import Diagonal
from qkvflow.lm import (
    LanguageModel,
    Segment,
    count_flops,
    count_parameters,
    weights_in_effect,
)
from qkvflow.zoo import INJECTIONS

LOOPED: dict[str, Any] = {"prelude": 2, "coda": 1, "depth_dial": "repeat"}


@eqx.filter_jit
def run(model: LanguageModel, tokens: Array) -> Array:
    return model(tokens)


@eqx.filter_jit
def gradient(model: LanguageModel, tokens: Array) -> LanguageModel:
    return jax.grad(lambda model: jnp.sum(model(tokens) ** 2))(model)


def plain_twin(model: LanguageModel) -> LanguageModel:
    """One per-layer segment with the layers of all, for residual steps and no injection."""
    layers = []
    for segment in model.segments:
        ts = np.arange(1, segment.num_steps + 1, dtype=np.float32) / np.float32(segment.num_steps)
        blocks = segment.field.stack(ts)
        mixers = 2
        for i in range(segment.num_steps):
            branches = take(blocks, i).branches
            layers += [
                Shared(dataclasses.replace(blocks, branches=branches[at : at + mixers]))
                for at in range(0, len(branches), mixers)
            ]
    return dataclasses.replace(
        model,
        field=stack_layers(layers),
        num_steps=len(layers),
        horizon=float(len(layers)),
        prelude=(),
        coda=(),
    )


@pytest.mark.parametrize("field", ["per-layer", "shared", "gated", "cycle"])
def test_segments_are_their_layers_one_after_another(field: str):
    model = randomised(make(config_of(field, **LOOPED, layers_per_loop=3)), 0.1)
    twin = plain_twin(model)
    assert isinstance(twin.field, PerLayer)
    assert twin.num_steps == 2 + 1 + (9 if field == "cycle" else 3)
    tokens = random_tokens(2, SEQ)
    np.testing.assert_allclose(run(model, tokens), run(twin, tokens), rtol=1e-4, atol=1e-4)
    # What is counted is what the twin stores and computes.
    assert weights_in_effect(model) == count_parameters(twin).blocks
    assert count_flops(model) == count_flops(twin)._replace(
        generation=count_flops(model).generation
    )
    stored = 2 + 1 + {"per-layer": 3, "shared": 1, "cycle": 3}.get(field, 0)
    if field != "gated":
        assert count_parameters(model).blocks == count_parameters(twin).blocks * stored // (
            twin.num_steps
        )


def test_gradients_of_segments_are_those_of_their_layers():
    model = randomised(make(config_of("cycle", **LOOPED)), 0.1)
    tokens = random_tokens(2, SEQ)
    found: Any = gradient(model, tokens)
    expected: Any = gradient(plain_twin(model), tokens)
    layers = expected.field.layers.block
    for at, own in ((slice(0, 2), found.prelude[0].field), (slice(8, 9), found.coda[0].field)):
        for a, b in zip(
            jax.tree.leaves(own), jax.tree.leaves(jax.tree.map(lambda x, at=at: x[at], layers)),
            strict=True,
        ):  # fmt: skip
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * float(jnp.abs(b).max()) + 1e-6)
    # Of a layer that is run in every loop: the sum over its copies.
    half = len(found.field.block.branches) // 2
    for index, branch in enumerate(found.field.block.branches):
        copies = jax.tree.map(
            lambda x, i=index: x[2 + i // half : 8 : 2].sum(0), layers.branches[index % half]
        )
        for a, b in zip(jax.tree.leaves(branch), jax.tree.leaves(copies), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * float(jnp.abs(b).max()) + 1e-6)


def test_without_prelude_coda_and_injection_nothing_changes():
    plain, again = tiny(), make(config_of(injection="none", prelude=0, coda=0))
    assert jax.tree.structure(plain) == jax.tree.structure(again)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(plain)]
    assert any(name.startswith(".field.layers.block") for name in names)
    assert not any("prelude" in name or "injection" in name for name in names)
    np.testing.assert_array_equal(run(plain, random_tokens(SEQ)), run(again, random_tokens(SEQ)))


def test_the_dial_turns_the_core():
    model = make(config_of("cycle", **LOOPED, injection="add"))
    more = model.at_depth(5)
    assert [each.num_steps for each in more.segments] == [2, 5, 1]
    assert more.horizon == 5.0
    refined = dataclasses.replace(model, depth_dial="refine").at_depth(5)
    assert refined.horizon == 3.0
    # Five loops are five, not three in smaller steps.
    fresh = make(config_of("cycle", **LOOPED, injection="add", num_steps=5))
    fresh = jax.tree.unflatten(jax.tree.structure(fresh), jax.tree.leaves(model))
    tokens = random_tokens(SEQ)
    np.testing.assert_array_equal(run(more, tokens), run(fresh, tokens))
    assert np.abs(run(more, tokens) - run(refined, tokens)).max() > 0.01


# Injections


@pytest.mark.parametrize("name", ["diagonal", "add", "concat"])
def test_injection_is_the_recurrence_it_says(name: str):
    """With blocks that do nothing, a loop is the injection alone, which is linear."""
    config = config_of("shared", injection=name, core_init="zeros", prelude=1, num_steps=4)
    model = randomised(make(config), 0.1)
    silent = jax.tree.map(jnp.zeros_like, model.field)
    model = dataclasses.replace(model, field=silent)
    tokens = random_tokens(2, SEQ)
    e = np.asarray(model.core_input(tokens), np.float64)
    states = np.asarray(model.integrate(tokens, save=True).trajectory, np.float64)
    np.testing.assert_array_equal(states[0], 0.0)
    if name == "diagonal":
        assert isinstance(model.injection, Diagonal)
        log_a, log_delta, b = map(np.asarray, jax.tree.leaves(model.injection))
        delta = np.exp(log_delta.astype(np.float64))
        decay = np.exp(-delta * np.exp(log_a))
        assert np.all((decay > 0) & (decay < 1))
        expected = [(1 - decay**n) / (1 - decay) * delta * b * e for n in range(5)]
    elif name == "add":
        expected = [n * e for n in range(5)]
    else:
        own, given = (np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(model.injection))
        joined = np.concatenate([own, given])
        expected = [0.0 * e]
        for _ in range(4):
            expected.append(np.concatenate([expected[-1], e], axis=1) @ joined)
    np.testing.assert_allclose(states, np.stack(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in INJECTIONS if name != "none"])
def test_every_injection_tells_the_core_of_its_input(name: str):
    """From zeros, the embedding reaches the logits through the injection alone."""
    tokens = random_tokens(SEQ)
    spread = {}
    for injection in (name, "none"):
        logits = run(make(config_of("shared", injection=injection, core_init="zeros")), tokens)
        spread[injection] = float(jnp.std(logits, axis=0).max())
    assert spread["none"] < 1e-5 < 0.05 < spread[name]


def test_noise_is_drawn_in_training_and_of_the_position_elsewhere():
    model = make(config_of("shared", core_init="noise", injection="concat", num_steps=1))
    tokens = random_tokens(2, SEQ)
    np.testing.assert_array_equal(model(tokens), model(tokens))
    one, two = (model(tokens, key=jax.random.key(seed)) for seed in (0, 1))
    assert np.abs(one - two).max() > 1e-3
    first = np.asarray(model.trajectory(tokens)[0])
    np.testing.assert_array_equal(first[0], first[1])
    assert np.std(first) == pytest.approx(0.32 * TINY["d_model"] ** -0.5, rel=0.2)


def test_what_cannot_be_is_refused():
    with pytest.raises(UserError, match="adaptive"):
        make(config_of(scheme="adaptive", injection="add"))
    with pytest.raises(UserError, match="needs an injection"):
        make(config_of(scheme="fixed-point", injection="none"))
    with pytest.raises(UserError, match="0 or more"):
        config_of(prelude=-1)
    with pytest.raises(UserError, match="injection"):
        config_of(injection="concatenate")
    adaptive = dataclasses.replace(
        tiny(scheme="adaptive"), injection=INJECTIONS["add"](config_of(), jax.random.key(0))
    )
    with pytest.raises(UserError, match="inject"):
        adaptive(random_tokens(SEQ))


# Generation

GENERATED = [
    ("cycle", "attention+mlp", {"injection": "concat", "core_init": "noise"}),
    ("gated", "attention+selective-ssm", {"injection": "diagonal", "core_init": "zeros"}),
]


@eqx.filter_jit
def extend(model: LanguageModel, tokens: Array, caches: Any, start: Array) -> tuple[Array, Any]:
    return model.extend(tokens, caches, start)


@pytest.mark.parametrize("index", range(len(INJECTIONS)))
def test_caches_give_what_whole_sequences_give(index: int):
    name, first = list(INJECTIONS)[index], ("noise", "zeros", "input")[index % 3]
    field, block, _ = GENERATED[index % 2]
    config = config_of(field, block, **LOOPED, injection=name, core_init=first)
    model, tokens = randomised(make(config), 0.05), random_tokens(2, 7)
    expected, model = np.asarray(run(model, tokens)), model.precomputed()
    caches, found = model.init_caches(2, 7), []
    for piece in jnp.split(tokens, (3, 4), axis=1):
        start = sum(each.shape[1] for each in found)
        logits, caches = extend(model, piece, caches, jnp.int32(start))
        found.append(logits)
    np.testing.assert_allclose(np.concatenate(found, axis=1), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("field", "block", "options"), GENERATED)
def test_generation_speculation_and_recomputation_agree(
    field: str, block: str, options: dict[str, Any]
):
    model = make(config_of(field, block, **LOOPED, **options))
    asked: dict[str, Any] = {"num_tokens": 4, "temperature": 0.0}
    prompts = [[1, 2, 3], [4, 5]]
    expected = generate(model, prompts, **asked)
    drafted = generate_speculative(model, prompts, draft_steps=1, draft_length=2, **asked)
    assert drafted.tokens == expected
    for prompt, text in zip(prompts, expected, strict=True):
        # All at once: what each place predicts of a text that is known.
        logits = run(model, jnp.asarray([*prompt, *text]))
        assert text == np.argmax(logits, axis=-1)[len(prompt) - 1 : -1].tolist()


def test_early_exit_of_a_looped_model():
    """A rule that is never met is full depth; one that always is, is a core of one step for the
    predictions (the tokens before it, too, left after one)."""
    options = {"injection": "diagonal", "core_init": "zeros"}
    model = randomised(make(config_of("cycle", **LOOPED, **options)), 0.05)
    text = random_tokens(2, 7)
    never = exit_quality(model, text, make_early_exit())
    assert never.average_depth == never.average_run == model.num_steps
    assert never.loss == pytest.approx(never.full_loss, rel=1e-5)
    always = exit_quality(model, text, make_early_exit(entropy=1e6))
    assert always.average_depth == always.average_run == 1
    shallow = exit_quality(model.at_depth(1), text, make_early_exit())
    assert always.loss == pytest.approx(shallow.loss, rel=1e-5)


def test_any_tuple_of_segments():
    """Two cores, of which the first has a scheme, a horizon and an injection of its own."""
    outer, inner = tiny("gated", scheme="euler"), tiny("shared", scheme="heun")
    first = Segment(
        inner.field, inner.scheme, 2, 0.5, INJECTIONS["add"](config_of(), jax.random.key(0))
    )
    model = dataclasses.replace(outer, prelude=(first,), coda=(first, first))
    alone = dataclasses.replace(
        inner, num_steps=2, horizon=0.5, injection=first.injection, embedding=outer.embedding
    )
    alone = dataclasses.replace(alone, positions=outer.positions)
    tokens = random_tokens(2, SEQ)
    np.testing.assert_allclose(
        model.core_input(tokens), alone.integrate(tokens).x, rtol=1e-5, atol=1e-6
    )
    assert run(model, tokens).shape == (2, SEQ, VOCAB)


def test_analyses_follow_the_core():
    """The core's flow is the model's own, injection included; the lens reads through the coda."""
    options = {"injection": "concat", "core_init": "noise"}
    model = randomised(make(config_of("cycle", **LOOPED, **options)), 0.05)
    tokens = np.asarray(random_tokens(5))
    flow = depth_flow(model, 5, given=model.core_input(jnp.asarray(tokens)))
    states = model.trajectory(jnp.asarray(tokens))
    for step in range(model.num_steps):
        np.testing.assert_allclose(flow(states[step], step), states[step + 1], rtol=1e-4, atol=1e-4)
    logits = np.asarray(run(model, jnp.asarray(tokens)))
    lens = trajectory(model, tokens).lens
    np.testing.assert_array_equal(lens.tokens[-1, :, 0], logits.argmax(-1))
    found = lyapunov(model, tokens, 2)
    assert np.isfinite(found.exponents).all()
    with pytest.raises(UserError, match="injects"):
        depth_flow(model, 5)
