"""Blocks of looped models and the entries that use them, against their papers' equations in NumPy
(`plain_blocks`), at 1e-4 on the same weights."""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import plain_blocks as plain
import pytest
from jaxtyping import Array
from plain_blocks import State
from tiny_models import VOCAB, config_of, make, random_tokens, randomised

import qkvflow
from qkvflow.errors import UserError
from qkvflow.fields.base import rms, take
from qkvflow.generation import generate
from qkvflow.generation.early_exit import exit_quality, make_early_exit
from qkvflow.interop.unrolled import unrolled
from qkvflow.lm import LanguageModel, count_flops, count_parameters, token_losses
from qkvflow.lm.assembly import abstract
from qkvflow.lm.loss import exit_losses
from qkvflow.runs.sections import TrainConfig
from qkvflow.training.objective import make_objective, step_flops
from qkvflow.zoo import configure, entry

KEY = jax.random.key(0)
NARROW: dict[str, Any] = {"d_model": 16, "num_heads": 2, "num_steps": 2, "context": 16}
SHAPES: dict[str, dict[str, Any]] = {
    "huginn": {"prelude": 1, "layers_per_loop": 2, "coda": 1},
    "ouro": {"layers_per_loop": 2},
    "universal": {},
    "loopformer": {"layers_per_loop": 2, "d_time": 6, "num_frequencies": 2},
}


@eqx.filter_jit
def run(model: LanguageModel, tokens: Array) -> Array:
    return model(tokens)


@eqx.filter_jit
def extend(model: LanguageModel, tokens: Array, caches: Any, start: Array) -> tuple[Array, Any]:
    return model.extend(tokens, caches, start)


@cache
def small(name: str, **changes: Any) -> LanguageModel:
    shape = {**NARROW, **SHAPES[name], **changes}
    return randomised(qkvflow.build(name, vocab_size=VOCAB, key=jax.random.key(0), **shape), 0.1)


def head(model: LanguageModel, x: State) -> State:
    table = model.embedding.T if model.head is None else model.head
    return x @ plain.array(table)


def layers(segment: Any) -> list[Any]:
    """The blocks of a prelude or coda, one after another."""
    return [take(segment.field.layers.block, i) for i in range(segment.num_steps)]


STEPS: dict[str, Callable[[State, Any], State]] = {
    # Xiong et al. 2020; Ding et al. 2021; Vaswani et al. 2017; Geiping et al. 2025.
    "pre": lambda x, b: x + plain.mix(plain.norm(x, b.norm), b.mixer),
    "sandwich": lambda x, b: x + plain.norm(plain.mix(plain.norm(x, b.norm), b.mixer), b.after),
    "post": lambda x, b: plain.norm(x + plain.mix(x, b.mixer), b.outer),
    "pre-post": lambda x, b: plain.norm(x + plain.mix(plain.norm(x, b.norm), b.mixer), b.outer),
}


@pytest.mark.parametrize("placement", STEPS)
def test_norm_placements(placement: str):
    model = randomised(make(config_of(norm_placement=placement)), 0.1)
    tokens = random_tokens(7)
    x = plain.array(model.embed(tokens, qkvflow.blocks.Rows(1, 7)))
    for block in layers(model.core):
        for branch in block.branches:
            x = STEPS[placement](x, branch)
    expected = head(model, plain.norm(x, model.norm.at(1.0)))
    np.testing.assert_allclose(run(model, tokens), expected, rtol=1e-4, atol=1e-4)


def test_value_residuals():
    """v_l <- a v_l + b v_1, with v_1 what the first layer's attention makes of the embedding."""
    model = randomised(
        make(config_of(value_residual=True, num_steps=2, prelude=1, context=16)), 0.1
    )
    tokens = random_tokens(2, 7)
    x = plain.array(model.embed(tokens[0], qkvflow.blocks.Rows(1, 7)))
    stack = [*layers(model.prelude[0]), *layers(model.core)]
    first = stack[0].branches[0]
    given = plain.values(plain.norm(x, first.norm), first.mixer)
    for block in stack:
        attention, channels = block.branches
        h, gains = plain.norm(x, attention.norm), attention.mixer.value_mix
        own, other = (plain.array(each)[:, None] for each in (gains.own, gains.first))
        v = own * plain.values(h, attention.mixer) + other * given
        x = x + plain.attention(h, attention.mixer, v)
        x = STEPS["pre"](x, channels)
    expected = head(model, plain.norm(x, model.norm.at(1.0)))
    np.testing.assert_allclose(run(model, tokens)[0], expected, rtol=1e-4, atol=1e-4)
    check_caches(model, tokens)
    # Whatever generates, token by token, takes the same way.
    asked: dict[str, Any] = {"num_tokens": 3, "temperature": 0.0}
    (text,) = generate(model, [tokens[0].tolist()], **asked)
    logits = run(model, jnp.asarray([*tokens[0].tolist(), *text]))
    assert text == np.argmax(logits, axis=-1)[6:-1].tolist()
    full = exit_quality(model, tokens, make_early_exit())
    assert full.loss == pytest.approx(full.full_loss, rel=1e-4)


def check_caches(model: LanguageModel, tokens: Array) -> None:
    expected, model = np.asarray(run(model, tokens)), model.precomputed()
    caches, found = model.init_caches(2, 7), []
    for piece in jnp.split(tokens, (3, 4), axis=1):
        start = sum(each.shape[1] for each in found)
        logits, caches = extend(model, piece, caches, jnp.int32(start))
        found.append(logits)
    np.testing.assert_allclose(np.concatenate(found, axis=1), expected, rtol=1e-4, atol=1e-4)


def test_huginn():
    model, tokens = small("huginn"), random_tokens(7)
    coda = model.coda[0]
    assert coda.norm is not None

    def through(x: State, blocks: list[Any]) -> State:
        for block in blocks:
            for branch in block.branches:
                x = STEPS["pre-post"](x, branch)
        return x

    e = through(plain.array(model.embedding)[np.asarray(tokens)], layers(model.prelude[0]))
    x = plain.array(model.trajectory(tokens)[0])
    assert np.std(x) > 0.05
    assert not np.allclose(x, e)
    injection: Any = model.injection
    for _ in range(model.num_steps):
        both = np.concatenate([x, e], axis=1)
        halves = (injection.of_state.weight, injection.of_input.weight)
        x = through(
            both @ np.concatenate([plain.array(each) for each in halves]), [model.field.at(1.0)]
        )
    x = through(plain.norm(x, coda.norm), layers(coda))
    expected = head(model, plain.norm(x, model.norm.at(1.0)))
    np.testing.assert_allclose(run(model, tokens), expected, rtol=1e-4, atol=1e-4)


def ouro_readings(model: LanguageModel, tokens: Array) -> list[State]:
    """h_i = norm(stack(h_{i-1})): the state after every loop, which head and gate read."""
    h, found = plain.array(model.embedding)[np.asarray(tokens)], []
    for _ in range(model.num_steps):
        branches = model.field.at(1.0).branches
        for branch in branches:
            h = STEPS["sandwich"](h, branch)
        # The norm at the end of a loop stands with its last branch.
        h = plain.norm(h, branches[-1].outer)
        found.append(h)
    return found


def exit_probabilities(model: LanguageModel, readings: list[State]) -> State:
    """p_i = lambda_i prod_{j<i} (1 - lambda_j), the last step takes what is left."""
    assert model.exit_gate is not None
    gates = [1 / (1 + np.exp(-plain.linear(h, model.exit_gate)[:, 0])) for h in readings]
    left, found = np.ones_like(gates[0]), []
    for gate in gates[:-1]:
        found.append(left * gate)
        left = left * (1 - gate)
    return np.stack([*found, left])


def test_ouro():
    model, tokens = small("ouro", num_steps=3), random_tokens(8)
    readings = ouro_readings(model, tokens[:-1])
    expected = [head(model, h) for h in readings]
    np.testing.assert_allclose(run(model, tokens[:-1]), expected[-1], rtol=1e-4, atol=1e-4)

    p = exit_probabilities(model, readings)
    each = np.stack(
        [np.log(np.exp(z).sum(-1)) - z[np.arange(7), np.asarray(tokens[1:])] for z in expected]
    )
    found = eqx.filter_jit(exit_losses)(model, tokens[:-1], tokens[1:])
    wanted = ((p * each).sum(0), -(p * np.log(p)).sum(0), each[-1])
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)

    # What is trained, and that nothing of it is dead.
    objective = make_objective(TrainConfig(exit_entropy=0.3), exits=True)

    @eqx.filter_jit
    @eqx.filter_value_and_grad(has_aux=True)
    def value(model: LanguageModel) -> tuple[Array, Array]:
        return objective(model, tokens[None, :-1], tokens[None, 1:], key=None, depth_key=KEY)

    (total, entropy), gradient = value(model)
    assert float(total) == pytest.approx(np.mean(wanted[0] - 0.3 * wanted[1]), rel=1e-4)
    assert float(entropy) == pytest.approx(np.mean(each[-1]), rel=1e-4)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient.exit_gate):
        assert np.all(leaf != 0.0), jax.tree_util.keystr(path)


def test_ouro_leaves_where_its_exits_add_up():
    """With a threshold between two cumulative probabilities, tokens leave where those say."""
    model, tokens = small("ouro", num_steps=3), random_tokens(1, 2)
    readings = ouro_readings(model, tokens[0, :1])
    reached = np.cumsum(exit_probabilities(model, readings), axis=0)[:, 0]
    for depth, threshold in enumerate((0.5 * reached[0], 0.5 * (reached[0] + reached[1]), 1.1), 1):
        quality = exit_quality(model, tokens, make_early_exit(exit=float(threshold)))
        assert quality.average_depth == min(depth, 3)
        logits = head(model, readings[depth - 1])[0]
        loss = np.log(np.exp(logits).sum()) - logits[int(tokens[0, 1])]
        assert quality.loss == pytest.approx(loss, rel=1e-4)
    with pytest.raises(UserError, match="no exit gate"):
        exit_quality(small("huginn"), tokens, make_early_exit(exit=0.5))


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_universal(placement: str):
    """H <- H + P_i + P_k; then as in the authors' code, A = H + attention(norm(H)) and
    H = A + transition(norm(A)), or as in the paper, norm(H + attention(H)) and so on."""
    model, tokens = small("universal", num_steps=3, norm_placement=placement), random_tokens(7)
    width = model.d_model

    def coordinate(index: int) -> State:
        return np.array(
            [
                (np.sin, np.cos)[channel % 2](index / 10000 ** ((channel - channel % 2) / width))
                for channel in range(width)
            ]
        )

    positions = np.stack([coordinate(i) for i in range(7)])
    block: Any = model.field.at(1.0)
    x = width**0.5 * plain.array(model.embedding)[np.asarray(tokens)]
    for step in (1, 2, 3):
        x = x + positions + coordinate(step)
        for branch in block.branches[1:]:
            x = STEPS[placement](x, branch)
    expected = head(model, plain.norm(x, model.norm.at(1.0)))
    np.testing.assert_allclose(run(model, tokens), expected, rtol=1e-4, atol=1e-4)


def test_what_universal_keeps_of_the_text():
    """With norms after the sums twelve steps of coordinates cover it, as docs/looped.md says."""
    shape: dict[str, Any] = {"d_model": 64, "num_heads": 4, "context": 64, "num_steps": 12}
    kept = {}
    for placement in ("pre", "post"):
        model = qkvflow.build(
            "universal", vocab_size=256, key=jax.random.key(0), **shape, norm_placement=placement
        )
        one, other = (
            np.asarray(model.trajectory(jax.random.randint(jax.random.key(i), (64,), 0, 256)))
            for i in (1, 2)
        )
        kept[placement] = np.linalg.norm(one[-1] - other[-1]) / np.linalg.norm(one[-1])
    assert kept["post"] < 1e-3 < 0.02 < kept["pre"]


def loopformer(model: LanguageModel, tokens: Array, edges: list[float]) -> State:
    """What the head reads, with steps between these depths."""
    field: Any = model.field

    def features(t: float) -> list[float]:
        angles = 2 * np.pi * t * np.geomspace(0.25, 4.0, 2)
        return [t, *np.sin(angles), *np.cos(angles)]

    def silu(x: State) -> State:
        return x / (1 + np.exp(-x))

    x = plain.array(model.embedding)[np.asarray(tokens)]
    x = x + plain.array(model.positions)[: len(tokens)]
    for begin, end in pairwise(edges):
        both = np.array([features(end) + features(end - begin)])
        inner = silu(plain.linear(both, field.embedding.first))
        c = silu(plain.linear(inner, field.embedding.second))
        modulations = iter([plain.linear(c, each)[0] for each in field.maps.linears])
        for branch in field.block.branches:
            scale = plain.array(branch.norm.scale) + next(modulations)
            gate = plain.array(branch.after.scale) + next(modulations)
            h = x / np.sqrt((x**2).mean(-1, keepdims=True) + branch.norm.eps) * scale
            x = x + (end - begin) * model.horizon * gate * plain.mix(h, branch.mixer)
    return plain.norm(x, model.norm.at(1.0))


def test_loopformer():
    model, tokens = small("loopformer", num_steps=4), random_tokens(7)
    expected = head(model, loopformer(model, tokens, [0, 0.25, 0.5, 0.75, 1]))
    np.testing.assert_allclose(run(model, tokens), expected, rtol=1e-4, atol=1e-4)
    # A field that knows how long its step is does another thing in a longer one.
    coarse = head(model, loopformer(model, tokens, [0, 0.5, 1]))
    np.testing.assert_allclose(run(model.at_depth(2), tokens), coarse, rtol=1e-4, atol=1e-4)
    blind = eqx.tree_at(lambda m: m.field, model.at_depth(2), model.field)
    assert np.abs(run(blind, tokens) - coarse).max() > 1e-2


def test_the_shortcut_of_loopformer():
    """CE_N + w (CE_M + mean square of h_N - h_M), at a grid that groups the N steps."""
    model, tokens = small("loopformer", num_steps=4), random_tokens(8)
    train = TrainConfig(shortcut=0.3, depth_jitter="2")
    objective = eqx.filter_jit(make_objective(train))
    given, wanted = tokens[:-1], np.asarray(tokens[1:])

    def entropy(h: State) -> float:
        z = head(model, h)
        return float(np.mean(np.log(np.exp(z).sum(-1)) - z[np.arange(7), wanted]))

    whole = loopformer(model, given, [0, 0.25, 0.5, 0.75, 1])
    values = []
    for cut in (0.25, 0.5, 0.75):
        short = loopformer(model, given, [0, cut, 1])
        distance = np.mean((whole - short) ** 2)
        values.append(entropy(whole) + 0.3 * (entropy(short) + distance))
    drawn = set()
    for seed in range(6):
        total, reported = objective(
            model, given[None], tokens[None, 1:], key=None, depth_key=jax.random.key(seed)
        )
        assert float(reported) == pytest.approx(entropy(whole), rel=1e-4)
        drawn.add(int(np.argmin(np.abs(np.array(values) - float(total)))))
        assert np.abs(np.array(values) - float(total)).min() < 1e-4 * abs(float(total))
    assert len(drawn) > 1
    run_flops = [count_flops(model.at_depth(n)).per_step(7) for n in (4, 2)]
    assert step_flops(train, model, 7) == sum(run_flops)


# A vocabulary and a shape for each; published sizes are of all parameters, embeddings included.
PUBLISHED: dict[str, tuple[str, int, dict[str, Any], int]] = {
    "ouro-1.4b": ("ouro", 49152, {"layers_per_loop": 24, "mlp_ratio": 5632 / 2048}, 1_434_652_673),
    "ouro-2.6b": ("ouro", 49152, {"layers_per_loop": 48, "mlp_ratio": 5632 / 2048}, 2_667_974_657),
    "huginn-3.5b": ("huginn", 65536, {"mlp_ratio": 17920 / 5280, "d_model": 5280}, 3_564_897_600),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str):
    """Counted from the configuration: what the papers round to 1.4, 2.6 and 3.5 billion."""
    entry_name, vocab, shape, expected = PUBLISHED[name]
    heads = {"ouro": 16, "huginn": 55}[entry_name]
    wide = {"d_model": 2048, "num_heads": heads, **shape}
    config = configure(entry(entry_name, "small"), wide)
    found = count_parameters(abstract(config, vocab_size=vocab)).total
    assert found == expected
    assert abs(found / 1e9 - float(name[name.index("-") + 1 : -1])) < 0.07


def change(num_steps: int, **options: Any) -> tuple[float, float]:
    """Size of the last state, and of the change of the logits after one step of fixed size in
    every weight of the core (what Adam's first step is)."""
    config = config_of("cycle", num_steps=num_steps, init_std=0.02, positions="none", **options)
    model, tokens = make(config), random_tokens(2, 8)

    @eqx.filter_jit
    def both(model: LanguageModel) -> tuple[Array, Array]:
        def value(field: Any) -> Array:
            changed = eqx.tree_at(lambda each: each.field, model, field)
            return token_losses(changed, tokens[:, :-1], tokens[:, 1:]).mean()

        gradient = eqx.filter_grad(value)(model.field)
        moved = jax.tree.map(lambda w, g: w - 1e-3 * jnp.sign(g), model.field, gradient)
        after = eqx.tree_at(lambda each: each.field, model, moved)(tokens)
        return rms(model.integrate(tokens).x), rms(after - model(tokens))

    state, step = both(model)
    return float(state), float(step)


def test_learning_rates_carry_over_to_more_loops():
    """With lambda / (N sqrt(L)) neither the state nor what a step of a given learning rate does to
    the function depends on the number of loops; with whole increments both grow with it."""
    few, many = change(2, residual_scale=1.0), change(13, residual_scale=1.0)
    np.testing.assert_allclose(few, many, rtol=0.1)
    whole_few, whole_many = change(2), change(13)
    assert whole_many[1] > 2.0 * whole_few[1]
    model = make(config_of("cycle", num_steps=4, residual_scale=0.5))
    assert model.horizon == pytest.approx(0.5 / 2**0.5)


@pytest.mark.parametrize("name", SHAPES)
def test_caches_of_looped_entries(name: str):
    check_caches(small(name), random_tokens(2, 7))


@pytest.mark.parametrize("name", ["ouro", "universal", "loopformer"])
def test_no_other_library_has_these_blocks(name: str):
    model = small(name)
    config = configure(entry(name, "small"), {**NARROW, **SHAPES[name]})
    with pytest.raises(UserError, match=r"no stack of layers|stacks? of layers here"):
        unrolled(model, config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"coda_norm": True}, "needs a coda"),
        ({"loop_norm": True}, "fields cycle"),
        ({"norm_placement": "after"}, "norm_placement"),
        ({"residual_scale": 1.0, "horizon": 2.0}, "give one"),
        ({"residual_scale": 1.0, "depth_dial": "repeat"}, "refine"),
        ({"exit_gate": True, "scheme": "adaptive"}, "fixed scheme"),
        ({"value_residual": True, "block": "ssm"}, "needs attention"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        config_of(**changes)
