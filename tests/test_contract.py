"""What every field, block and scheme promises, in all pairs of the three.

Each case combines a field, a block and a scheme; together they meet every field with every
block, every field with every scheme and every block with every scheme.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import Array
from tiny_models import (
    BLOCK_CASES,
    FIELD_CASES,
    SCHEME_CASES,
    SEQ,
    VOCAB,
    config_of,
    make,
    random_tokens,
    randomised,
    tiny,
)

from qkvflow.lm import LanguageModel
from qkvflow.schemes import AbstractSolver
from qkvflow.schemes.parts import remat
from qkvflow.zoo import FIELDS, INJECTIONS, MIXERS, SCHEMES, ModelConfig

pytestmark = pytest.mark.usefixtures("rolled")

LOOPED = "fixed-point"
"""A loop of residual steps, which every field and block meets by themselves: it has variants."""
PAIRS = [
    (field, list(BLOCK_CASES)[(i + j) % len(BLOCK_CASES)], scheme)
    for i, field in enumerate(FIELD_CASES)
    for j, scheme in enumerate(SCHEME_CASES)
    if scheme != LOOPED
]
VARIANTS = [
    {"field": "shared", **SCHEME_CASES[LOOPED]},
    {"field": "gated", **SCHEME_CASES[LOOPED], "num_steps": 2, "coda": 1},
    {"field": "gated", "gate_activation": "centred"},
    {"field": "gated", "gate": "both"},
    {"field": "gated", "gate": "low-rank"},
    {"field": "gated", "gate": "low-rank", "gate_activation": "centred"},
    {"field": "gated", "gate": "full", "gate_activation": "centred"},
    *({"field": "hypernet", "time_features": each} for each in ("learned", "raw", "layers")),
    *({"field": "basis", "basis": each, "num_basis": 3} for each in ("chebyshev", "bspline")),
    {"remat": "block"},
    {"field": "gated", "lora": "*", "lora_rank": 2},
    *(
        {"field": "shared", "injection": each, "prelude": 1, "coda": 1, "core_init": "noise"}
        for each in INJECTIONS
        if each != "none"
    ),
    {"field": "cycle", "injection": "diagonal", "core_init": "zeros", "prelude": 1},
    {"field": "low-rank", "qk_norm": True, "head_dim": 6, "positions": "rope"}
    | {"rotary_fraction": 0.7, "rotary_scaling": "llama3:8:1:4:32", "activation": "gelu"},
    {"field": "hypernet", "lora": "qkv:depth,down:depth", "lora_rank": 2},
    {"field": "gated", "norm_placement": "post"},
    {"field": "gated", "value_residual": True, "prelude": 1},
    {"field": "modulated", "time_features": "step", "scale_embedding": True},
    {"field": "hypernet", "norm_placement": "pre-post", "prelude": 1, "coda": 1, "coda_norm": True},
    {
        "field": "cycle",
        "norm_placement": "sandwich",
        "loop_norm": True,
        "final_norm": "none",
    },
]
CHANGED = 4
"""The position at which two otherwise equal texts differ."""


def texts() -> Array:
    """Two texts that differ in one token, and a third with the rest of the vocabulary."""
    first = np.random.default_rng(0).permutation(VOCAB)
    second = first[:SEQ].copy()
    second[CHANGED] = first[SEQ]
    return jnp.asarray(np.stack([first[:SEQ], second, [*first[SEQ:], first[0]]]), jnp.int32)


@eqx.filter_value_and_grad(has_aux=True)
def derived(model: LanguageModel, tokens: Array) -> tuple[Array, Array]:
    logits = model(tokens)
    targets = jnp.roll(tokens, -1, axis=-1)
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean(), logits


gradient = eqx.filter_jit(derived)


def three_steps(model: LanguageModel, tokens: Array) -> tuple[Any, list[float], np.ndarray]:
    """The model after three steps of Adam, its losses and its first logits."""
    arrays, structure = jax.tree.flatten(jax.tree.map(np.asarray, model))
    first = [np.zeros_like(each) for each in arrays]
    second = [np.zeros_like(each) for each in arrays]
    losses, logits = [], []
    for step in range(1, 4):
        model = jax.tree.unflatten(structure, [jnp.asarray(each) for each in arrays])
        (loss, found), grads = gradient(model, tokens)
        losses.append(float(loss))
        logits.append(np.asarray(found))
        for path, grad in jax.tree_util.tree_leaves_with_path(grads):
            assert np.isfinite(grad).all(), f"gradient of {jax.tree_util.keystr(path)}"
        for i, grad in enumerate(map(np.asarray, jax.tree.leaves(grads))):
            first[i] = 0.9 * first[i] + 0.1 * grad
            second[i] = 0.999 * second[i] + 0.001 * grad**2
            scale = np.sqrt(second[i] / (1 - 0.999**step)) + 1e-8
            arrays[i] = arrays[i] - 0.01 * first[i] / (1 - 0.9**step) / scale
    return jax.tree.unflatten(structure, arrays), losses, logits[0]


def check(config: ModelConfig) -> None:
    model, tokens = make(config), texts()
    trained, losses, logits = three_steps(model, tokens)
    assert logits.shape == (*tokens.shape, VOCAB)
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    assert dead(model, trained, config) == {}
    # Causality both ways.
    np.testing.assert_allclose(logits[0, :CHANGED], logits[1, :CHANGED], rtol=1e-5, atol=1e-5)
    later = np.abs(logits[0, CHANGED + 1 :] - logits[1, CHANGED + 1 :])
    assert later.max() > 1e-4


def dead(before: Any, after: Any, config: ModelConfig) -> dict[str, int]:
    """How many entries of each array did not move, where there are any.

    Without rotation a bias of the keys adds the same to all scores of a query, which the softmax
    takes away: it has no gradient, and is left out.
    """
    found = {}
    first = config.d_head * config.num_heads
    keys = slice(first, first + config.d_head * config.kv_heads)
    for (path, old), new in zip(
        jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True
    ):
        name = jax.tree_util.keystr(path)
        still = np.asarray(old) == np.asarray(new)
        if ".qkv" in name and name.endswith(".bias") and ".embedding" not in name:
            still[..., keys] = False
        if still.any():
            found[name] = int(still.sum())
    return found


@pytest.mark.parametrize(("field", "block", "scheme"), PAIRS)
def test_contract(field: str, block: str, scheme: str):
    check(config_of(field, block, scheme))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda each: "-".join(map(str, each.values())))
def test_contract_of_variants(variant: dict[str, Any]):
    check(config_of(**variant))


@pytest.mark.parametrize("field", FIELD_CASES)
def test_written_out_or_not(field: str, monkeypatch: pytest.MonkeyPatch):
    """The loop over depth of the tests here, and its steps one after another as in training."""

    @eqx.filter_jit
    def both(model: LanguageModel, tokens: Array) -> list[Any]:
        found = []
        for most in (1, 8):
            monkeypatch.setattr(remat, "MAX_UNROLLED", most)
            assert remat.unrolled(model.num_steps) == min(most, model.num_steps)
            found.append(derived(model, tokens))
        return found

    rolled, written_out = both(randomised(make(config_of(field, "mlp")), 0.05), texts())
    for one, other in zip(jax.tree.leaves(rolled), jax.tree.leaves(written_out), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_every_member_is_in_the_contract():
    assert {config_of(field).field for field in FIELD_CASES} == set(FIELDS)
    assert {mixer for block in BLOCK_CASES for mixer in block.split("+")} == set(MIXERS)
    assert {each["scheme"] for each in SCHEME_CASES.values()} == set(SCHEMES)
    assert any(each.get("scheme") == LOOPED for each in VARIANTS)
    first, last = set(PAIRS), [(0, 1), (0, 2), (1, 2)]
    sizes = [len(FIELD_CASES), len(BLOCK_CASES), len(SCHEME_CASES) - 1]
    for a, b in last:
        assert len({(pair[a], pair[b]) for pair in first}) == sizes[a] * sizes[b]


def test_a_dead_parameter_is_found():
    """Per-layer weights held at one depth: only the two layers about it are ever used."""
    config = config_of("per-layer", frozen_time=1.0)
    model = make(config)
    trained = three_steps(model, texts())[0]
    first_layers = dead(model, trained, config)
    assert first_layers
    for path, old in jax.tree_util.tree_leaves_with_path(model.field):
        # All but the last layer, and all of the last layer's arrays move.
        name = ".field" + jax.tree_util.keystr(path)
        if not ("qkv" in name and name.endswith("bias")):
            assert first_layers[name] == old.size * 2 // 3


REPRESENTATIVES = [
    (field, list(BLOCK_CASES)[i % len(BLOCK_CASES)], list(SCHEME_CASES)[i % len(SCHEME_CASES)])
    for i, field in enumerate(FIELD_CASES)
]
"""Every field, every block and every scheme at least once."""


@eqx.filter_jit
def run(model: LanguageModel, tokens: Array) -> Array:
    return model(tokens)


@pytest.mark.parametrize(("field", "block", "scheme"), REPRESENTATIVES)
def test_transformations(field: str, block: str, scheme: str):
    """Jit equals no jit, any leading axes, and vmap equals a loop."""
    model = tiny(field, block, scheme)
    tokens = random_tokens(2, 2, 5)
    expected = np.stack([[run(model, text) for text in texts] for texts in tokens])
    # The steps of a solver depend on the batch. Its tolerance here is 1e-5, of every step; what
    # comes after the step, and the head, make more of an error.
    close = 1e-3 if isinstance(model.scheme, AbstractSolver) else 2e-5
    assert expected.shape == (2, 2, 5, VOCAB)
    np.testing.assert_allclose(run(model, tokens), expected, rtol=1e-4, atol=close)
    np.testing.assert_allclose(model(tokens[0]), expected[0], rtol=1e-4, atol=close)
    mapped = jax.jit(jax.vmap(model))(tokens)
    np.testing.assert_allclose(mapped, expected, rtol=1e-4, atol=close)


@pytest.mark.parametrize(("field", "block", "scheme"), REPRESENTATIVES)
def test_models_by_key(field: str, block: str, scheme: str):
    """The same key the same model, another key another; vmap over keys equals a loop."""
    config = config_of(field, block, scheme)
    tokens = random_tokens(2, 5)
    stacked = eqx.filter_vmap(lambda seed: make(config, seed))(jnp.arange(2))
    together = eqx.filter_jit(eqx.filter_vmap(lambda model: model(tokens)))(stacked)
    models = [tiny(field, block, scheme), make(config, 1)]
    for made, again in zip(
        jax.tree.leaves(models[0]), jax.tree.leaves(make(config, 0)), strict=True
    ):
        np.testing.assert_array_equal(made, again)
    logits = [run(model, tokens) for model in models]
    # Models share nothing under vmap, the steps of the adaptive scheme neither.
    np.testing.assert_allclose(together, np.stack(logits), rtol=1e-4, atol=2e-5)
    assert np.abs(logits[0] - logits[1]).max() > 0.1


@pytest.mark.parametrize(("field", "block", "scheme"), REPRESENTATIVES)
def test_bfloat16_stays_near_float32(field: str, block: str, scheme: str):
    model = tiny(field, block, scheme)
    narrow = tiny(field, block, scheme, compute_dtype="bfloat16")
    tokens = random_tokens(2, SEQ)
    expected, found = run(model, tokens), run(narrow, tokens)
    assert found.dtype == jnp.float32
    error = float(jnp.sqrt(jnp.mean((found - expected) ** 2)) / jnp.std(expected))
    # Eight bits of mantissa, a few products deep.
    assert 1e-5 < error < 0.03


COARSE_FINE = {
    # Four times the steps: four times less error for order 1, sixteen times for order 2.
    "euler": ((32, {}), (128, {}), 2.5),
    "midpoint": ((32, {}), (128, {}), 10),
    "heun": ((32, {}), (128, {}), 10),
    "strang": ((32, {}), (128, {}), 10),
    # 256 times for order 4, less where weights between layers have kinks.
    "rk4": ((8, {}), (32, {}), 40),
    "adaptive": ((3, {"tolerance": 1e-3}), (3, {"tolerance": 1e-5}), 20),
}
"""Two settings of a scheme, and how much nearer to the flow the second comes at least."""


@pytest.mark.parametrize(
    ("field", "scheme"), list(zip(FIELD_CASES, list(COARSE_FINE) * 2, strict=False))
)
def test_any_depth_and_scheme(field: str, scheme: str):
    """A model runs with any number of steps and any scheme, and converges to one flow."""
    model = randomised(tiny(field, "attention+mlp", "euler"), 0.05)
    tokens = random_tokens(SEQ)
    flow = run(model.at_depth(256, tiny(scheme="rk4").scheme), tokens)

    def error(num_steps: int, options: dict[str, Any]) -> float:
        other = tiny(scheme=scheme, **options).scheme
        return float(np.abs(run(model.at_depth(num_steps, other), tokens) - flow).max())

    coarse, fine, factor = COARSE_FINE[scheme]
    assert error(*fine) < error(*coarse) / factor
    # One step is another traversal: the dial does something.
    assert np.abs(run(model.at_depth(1), tokens) - flow).max() > 0.1


def test_adaptive_is_causal_up_to_its_tolerance():
    leaks = {}
    for tolerance in (1e-2, 1e-5):
        model = tiny("gated", "attention+mlp", "adaptive", tolerance=tolerance, horizon=3.0)
        before, after = run(model, texts()[0]), run(model, texts()[1])
        leaks[tolerance] = np.abs(before[:CHANGED] - after[:CHANGED]).max()
        assert np.abs(before[CHANGED:] - after[CHANGED:]).max() > 0.1
    # An error of the tolerance in a step grows along the rest of the flow and in the head.
    assert leaks[1e-5] < 1e-4
    assert leaks[1e-5] < leaks[1e-2] / 100
