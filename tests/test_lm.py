"""The language model: what it computes, dropout, depth as a dial, and what it counts."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from tiny_models import SEQ, VOCAB, config_of, make, random_tokens, randomised, tiny

import qkvflow
from qkvflow.blocks import Rows
from qkvflow.errors import UserError
from qkvflow.fields.base import take
from qkvflow.lm import LanguageModel, abstract, loss, token_losses, weights_in_effect
from qkvflow.planning.hlo import count_work
from qkvflow.zoo import PUBLISHED, configure, entry


@eqx.filter_jit
def run(model: LanguageModel, tokens: Array, key: Any = None) -> Array:
    return model(tokens, key=key)


@eqx.filter_jit
def extend(model: LanguageModel, tokens: Array, caches: Any, start: Array) -> tuple[Array, Any]:
    return model.extend(tokens, caches, start)


def by_hand(model: LanguageModel, tokens: Array) -> Array:
    """A loop over layers, written out: embed, add attention, add MLP, norm, head."""
    rows = Rows(tokens.shape[0], tokens.shape[1])
    assert model.positions is not None
    x = model.embedding[tokens] + model.positions[None, : tokens.shape[1]]
    x = x.reshape(-1, model.d_model)
    stack: Any = model.field
    for i in range(model.num_steps):
        block = take(stack.layers.block, i)
        for branch in block.branches:
            x = x + branch.mixer(branch.norm(x), rows)
    final: Any = model.norm
    return (final.block(x) @ model.embedding.T).reshape(*tokens.shape, -1)


def test_standard_equals_a_loop_over_layers():
    """Forward and gradient."""
    model, tokens = randomised(tiny(), 0.1), random_tokens(2, SEQ)

    def objective(model: LanguageModel, evaluate: Any) -> tuple[Array, Array]:
        logits = evaluate(model, tokens)
        return jnp.sum(jnp.sin(logits)), logits

    gradient = eqx.filter_jit(eqx.filter_grad(objective, has_aux=True))
    slopes, logits = gradient(model, lambda model, tokens: model(tokens))
    expected_slopes, expected = gradient(model, by_hand)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    for a, b in zip(jax.tree.leaves(slopes), jax.tree.leaves(expected_slopes), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_loss_is_the_cross_entropy_of_the_logits():
    model, tokens = tiny("gated"), random_tokens(2, 3, SEQ)
    targets, mask = random_tokens(2, 3, SEQ, seed=1), random_tokens(2, 3, SEQ, seed=2) % 2
    log_probabilities = np.asarray(jax.nn.log_softmax(run(model, tokens)))
    expected = -np.take_along_axis(log_probabilities, np.asarray(targets)[..., None], -1)[..., 0]
    np.testing.assert_allclose(token_losses(model, tokens, targets), expected, rtol=1e-5)
    assert loss(model, tokens, targets) == pytest.approx(expected.mean(), rel=1e-5)
    masked = loss(model, tokens, targets, mask=mask.astype(jnp.float32))
    assert masked == pytest.approx(expected[np.asarray(mask) == 1].mean(), rel=1e-5)


def test_loss_makes_no_array_of_targets_by_vocabulary():
    """No one-hot targets: the only product with the vocabulary is the head's."""
    model, tokens = tiny(), random_tokens(2, SEQ)
    text = str(jax.make_jaxpr(lambda model: loss(model, tokens, tokens))(model))
    assert text.count(f"f32[{2 * SEQ},{VOCAB}] = dot_general") == 1
    assert f"i32[{2 * SEQ},{VOCAB}]" not in text


def test_trajectory():
    model, tokens = tiny("hypernet", "attention+mlp", "euler"), random_tokens(2, 5)
    states = model.trajectory(tokens)
    assert states.shape == (model.num_steps + 1, 2, 5, model.d_model)
    rows = Rows(2, 5)
    np.testing.assert_allclose(states[0].reshape(10, -1), model.embed(tokens, rows), atol=1e-6)
    logits = model.logits(states[-1].reshape(10, -1)).reshape(2, 5, VOCAB)
    np.testing.assert_allclose(logits, run(model, tokens), atol=1e-5)


# Dropout


def test_dropout_of_the_model():
    """Off without a key, the same at rate 0, random with a key, and the same for the same key."""
    plain, model = tiny(), tiny(dropout=0.2, attention_dropout=0.2)
    tokens, keys = random_tokens(2, SEQ), jax.random.split(jax.random.key(5), 2)
    expected = run(plain, tokens)
    np.testing.assert_array_equal(run(model, tokens), expected)
    np.testing.assert_array_equal(run(plain, tokens, keys[0]), expected)
    first, second = (run(model, tokens, key) for key in keys)
    np.testing.assert_array_equal(run(model, tokens, keys[0]), first)
    assert np.abs(first - second).max() > 1e-2
    assert np.abs(first - expected).max() > 1e-2


def test_every_step_draws_its_own_dropout():
    """A shared block is dropped out differently at each depth."""
    model = randomised(tiny("shared", dropout=0.5, tied=False), 0.1)
    states = model.integrate(random_tokens(1, SEQ), key=jax.random.key(0), save=True).trajectory
    assert states is not None
    kept = np.diff(np.asarray(states), axis=0) != 0.0
    assert not np.array_equal(kept[0], kept[1])


# Depth as a dial


def test_another_depth():
    model = tiny("gated")
    other = model.at_depth(7)
    assert (other.num_steps, other.horizon) == (7, model.horizon)
    assert model.at_depth().num_steps == model.num_steps
    with pytest.raises(UserError, match="num_steps must be a whole number of at least 1"):
        model.at_depth(0)


def test_too_long_for_learned_positions():
    with pytest.raises(UserError, match="10 tokens do not fit this model's 9 learned positions"):
        tiny()(random_tokens(SEQ + 1))
    assert run(tiny(block="attention+swiglu"), random_tokens(SEQ + 1)).shape == (SEQ + 1, VOCAB)


@pytest.mark.parametrize(
    ("field", "block", "scheme"),
    [
        ("hypernet", "attention+mlp", "residual"),
        ("gated", "attention+ssm", "heun"),
        ("low-rank", "attention+selective-ssm", "strang"),
    ],
)
def test_caches_and_tables_give_the_same_logits(field: str, block: str, scheme: str):
    model, tokens = tiny(field, block, scheme), random_tokens(2, 6)
    expected = run(model, tokens)
    table = model.precomputed()
    np.testing.assert_allclose(run(table, tokens), expected, atol=1e-5)
    caches, pieces = table.init_caches(2, 6), []
    for start, length in ((0, 3), (3, 1), (4, 1), (5, 1)):
        piece = tokens[:, start : start + length]
        logits, caches = extend(table, piece, caches, jnp.asarray(start))
        pieces.append(logits)
    np.testing.assert_allclose(jnp.concatenate(pieces, axis=1), expected, atol=1e-4)


def test_adaptive_keeps_no_caches():
    model = tiny(scheme="adaptive")
    assert model.precomputed() is model
    with pytest.raises(UserError, match="cannot keep caches"):
        model.init_caches(1, 4)


# Counting


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts(name: str):
    config, published = configure(entry(name), {}), PUBLISHED[name][1]
    assert qkvflow.count_parameters(abstract(config, vocab_size=256)).total == published


def test_parameters_of_the_standard_model():
    model = qkvflow.build("standard", vocab_size=11, key=jax.random.key(0), d_model=8, context=5)
    d, layers = 8, 6
    layer = 2 * 2 * d + (d * 3 * d + 3 * d) + (d * d + d) + (4 * d * d + 4 * d) + (4 * d * d + d)
    parameters = qkvflow.count_parameters(model)
    assert parameters == (11 * d + 5 * d + layers * layer + 2 * d, 16 * d, layers * layer, 2 * d)
    assert weights_in_effect(model) == layers * layer


def test_parts_add_up():
    for name in qkvflow.names():
        model = abstract(configure(entry(name), {}), vocab_size=256)
        total, *parts = qkvflow.count_parameters(model)
        assert total == sum(parts)
        assert total == sum(leaf.size for leaf in jax.tree.leaves(model))


def test_flops_of_the_standard_model():
    d, layers, context, vocab = 256, 6, 512, 100
    config = configure(entry("standard"), {})
    flops = qkvflow.count_flops(abstract(config, vocab_size=vocab))
    products = 2 * (3 * d * d + d * d + 4 * d * d + 4 * d * d)
    attention = 2 * 2 * context * d
    assert flops.forward == layers * (products + attention) + 2 * d * vocab
    assert flops.training == 3 * flops.forward
    assert flops.generation == 0
    assert flops.per_step(10) == 10 * flops.training


def test_flops_follow_scheme_and_rematerialisation():
    def count(scheme: str, **overrides: Any) -> Any:
        config = config_of("hypernet", "attention+mlp", scheme, **overrides)
        return qkvflow.count_flops(abstract(config, vocab_size=VOCAB))

    head = 2 * 16 * VOCAB
    one, four = count("euler"), count("rk4")
    assert four.forward - head == 4 * (one.forward - head)
    assert four.generation == 3 * one.generation > 0
    for steps, twice in ((1, 1), (3, 1), (4, 2), (5, 1), (6, 2)):
        kept, block, everything = (
            count("euler", remat=each, num_steps=steps) for each in ("none", "block", "everything")
        )
        blocks = kept.forward - head
        assert block.training == kept.training + blocks
        assert everything.training == kept.training + twice * blocks


def test_rematerialisation_is_counted_by_segment():
    """Own layers of which there is one, around a core of four steps."""
    options = {"prelude": 1, "coda": 1, "num_steps": 4, "injection": "add"}
    kept, again = (
        qkvflow.count_flops(abstract(config_of("shared", remat=each, **options), vocab_size=VOCAB))
        for each in ("none", "everything")
    )
    layers = (kept.forward - 2 * 16 * VOCAB) // 6
    assert again.training == kept.training + (2 * 4 + 1 + 1) * layers


def test_flops_of_value_residuals():
    """One product more: the first layer's values of the embedding."""
    plain, mixed = (
        qkvflow.count_flops(abstract(config_of(value_residual=each), vocab_size=VOCAB))
        for each in (False, True)
    )
    d, kv_heads, d_head = 16, 2, 4
    assert mixed.forward - plain.forward == 2 * d * kv_heads * d_head
    assert mixed.training - plain.training == 3 * 2 * d * kv_heads * d_head


def test_flops_of_modulations():
    """Embedding of t and dt, then a map to two scales of each branch, for every loop."""
    d, loops, layers, features, d_time = 16, 4, 2, 2 * (2 * 3 + 1), 6
    shape = {"num_steps": loops, "layers_per_loop": layers, "d_model": d, "num_heads": 2}
    config = configure(entry("loopformer"), {**shape, "d_time": d_time, "num_frequencies": 3})
    flops = qkvflow.count_flops(abstract(config, vocab_size=VOCAB))
    embedding = features * d_time + d_time * d_time
    maps = layers * 2 * 2 * d_time * d
    assert flops.generation == loops * 2 * (embedding + maps)
    assert flops.per_step(10) == 10 * flops.training + 3 * flops.generation


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("shared", {}),
        ("gated", {"gate": "both"}),
        ("gated", {"gate": "low-rank"}),
        ("gated", {"gate": "full"}),
        ("gated-generated", {"block": "attention+ssm"}),
        ("hypernet", {"scheme": "heun"}),
        ("hypernet", {"frozen_time": 0.5}),
        ("per-layer-hypernet", {}),
        ("low-rank", {}),
        ("basis", {}),
        ("shared", {"lora": "*:depth"}),
    ],
)
def test_flops_of_making_weights_are_those_of_the_compiled_program(field: str, options: Any):
    """A pass over two sequences, whose products are few beside those that make the weights."""
    model = abstract(config_of(**{"field": field, **options}), vocab_size=VOCAB)
    tokens = jax.ShapeDtypeStruct((2, SEQ), jnp.int32)
    text = jax.jit(lambda model, tokens: model(tokens)).lower(model, tokens).compile().as_text()
    flops = qkvflow.count_flops(model, SEQ)
    assert (flops.generation > 0) == (field != "shared" or "lora" in options)
    expected = 2 * SEQ * flops.forward + flops.generation
    assert count_work(text or "").products == pytest.approx(expected, rel=0.005)


def test_flops_against_xla():
    """A whole model with its depth unrolled, since XLA counts the body of a loop once."""
    config = config_of(d_model=128, num_steps=2, mlp_ratio=4.0, num_heads=2, context=64)
    model = abstract(config, vocab_size=VOCAB)
    tokens = jax.ShapeDtypeStruct((1, 64), jnp.int32)
    cost = jax.jit(by_hand).lower(model, tokens).cost_analysis()
    assert cost is not None
    expected = 64 * qkvflow.count_flops(model).forward
    assert cost["flops"] == pytest.approx(expected, rel=0.06)


def test_compute_dtype_keeps_parameters_wide():
    model = make(config_of(compute_dtype="bfloat16"))
    assert {leaf.dtype for leaf in jax.tree.leaves(model)} == {jnp.dtype("float32")}
