"""Adapters, merging and changes of depth, on models that are not trained."""

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from tiny_models import TINY, VOCAB, random_tokens, randomised

from qkvflow.data.tokenizers import CharTokenizer
from qkvflow.errors import UserError
from qkvflow.fields import Lora, PerLayer
from qkvflow.fields.wrappers.lora import matrices_of
from qkvflow.finetune import Adaptation, adapted_model, load_adapter, merge, save_adapter
from qkvflow.finetune.adaptation import model_changes, relayered
from qkvflow.finetune.adapters import weights_hash
from qkvflow.lm import LanguageModel, build_config
from qkvflow.runs.config import make_config
from qkvflow.runs.load import Trained
from qkvflow.runs.weights import named_arrays
from qkvflow.schemes import grid
from qkvflow.training.trainable import count_trained, trained_arrays

pytestmark = pytest.mark.usefixtures("rolled")

TOKENS = random_tokens(2, 6)
FIELDS = ("shared", "per-layer", "hypernet", "low-rank", "basis", "gated")
_forward = eqx.filter_jit(lambda model: model(TOKENS))


def logits(model: LanguageModel) -> np.ndarray:
    return np.asarray(_forward(model))


@cache
def base_of(field: str, **changes: Any) -> Trained:
    """A model with every array moved at random, as if it had been trained."""
    config = make_config({"model": {**TINY, "field": field, **changes}})
    model = build_config(config.model.config, vocab_size=VOCAB, key=jax.random.key(0))
    tokenizer = CharTokenizer("abcdefghijklmnop\n")
    return Trained(randomised(model, 0.05), tokenizer, config)


def field_of(trained: Trained) -> Any:
    return trained.model.field


def adapted(base: Trained, adaptation: Adaptation) -> Trained:
    config = make_config(base.config.to_dict(), {"model": model_changes(base, adaptation)})
    model = adapted_model(base, config.model.config, adaptation, key=jax.random.key(1))
    return dataclasses.replace(base, model=model, config=config)


def moved(trained: Trained) -> Trained:
    """With adapters that do something."""
    field = trained.model.field
    assert isinstance(field, Lora)
    field = Lora(field.field, randomised(field.adapters, 0.2))
    return dataclasses.replace(trained, model=dataclasses.replace(trained.model, field=field))


@pytest.mark.parametrize("field", FIELDS)
def test_adapters_start_as_nothing_and_add_a_low_rank_term(field: str):
    base = base_of(field)
    start = adapted(base, Adaptation("lora", adapter="qkv:depth,down", rank=2))
    np.testing.assert_array_equal(logits(start.model), logits(base.model))
    after = moved(start)
    assert np.abs(logits(after.model) - logits(base.model)).max() > 1e-2
    ts = grid(TINY["num_steps"])
    before, now = base.model.field.stack(ts), after.model.field.stack(ts)
    adapters = field_of(after).adapters
    assert sorted(adapters) == ["branches.0.mixer.qkv.weight", "branches.1.mixer.down.weight"]
    down, up = (
        np.asarray(each) for each in jax.tree.leaves(adapters["branches.0.mixer.qkv.weight"])
    )
    for knot in range(len(ts)):
        change = now.branches[0].mixer.qkv.weight[knot] - before.branches[0].mixer.qkv.weight[knot]
        np.testing.assert_allclose(change, down[knot] @ up[knot], atol=1e-5)
    change = now.branches[1].mixer.down.weight - before.branches[1].mixer.down.weight
    down, up = (np.asarray(x) for x in jax.tree.leaves(adapters["branches.1.mixer.down.weight"]))
    np.testing.assert_allclose(change, np.broadcast_to(down @ up, change.shape), atol=1e-5)
    assert np.linalg.matrix_rank(down @ up) == 2


@pytest.mark.parametrize("field", FIELDS)
def test_merging_gives_the_same_outputs(field: str):
    shared = moved(adapted(base_of(field), Adaptation("lora", rank=2)))
    merged = merge(shared)
    np.testing.assert_allclose(logits(merged.model), logits(shared.model), atol=2e-5)
    # A field with a part that is shared over depth keeps its kind, and so stays a function of t.
    assert merged.config.model.config.field == ("per-layer" if field == "gated" else field)
    assert type(merged.model.field) is not Lora
    # The configuration builds a model of these shapes: what an export is read with.
    fresh = build_config(merged.config.model.config, vocab_size=VOCAB, key=jax.random.key(3))
    assert jax.tree.structure(fresh) == jax.tree.structure(merged.model)
    if field != "gated":
        finer = [x.model.at_depth(7) for x in (shared, merged)]
        np.testing.assert_allclose(logits(finer[1]), logits(finer[0]), atol=2e-5)


def test_merging_adapters_that_depend_on_depth():
    tuned = moved(adapted(base_of("hypernet"), Adaptation("lora", adapter="*:depth", rank=2)))
    merged = merge(tuned)
    assert isinstance(merged.model.field, PerLayer)
    np.testing.assert_allclose(logits(merged.model), logits(tuned.model), atol=2e-5)
    between = moved(adapted(base_of("gated", scheme="heun"), Adaptation("lora", rank=2)))
    with pytest.raises(UserError, match="between grid points"):
        merge(between)
    with pytest.raises(UserError, match="no adapters to merge"):
        merge(base_of("shared"))


def test_all_but_the_field_is_the_bases():
    base = base_of("shared", exit_gate=True, injection="concat", prelude=1, coda=1, tied=False)
    for adaptation in (Adaptation(), Adaptation("lora", rank=2)):
        before, after = (named_arrays(x.model) for x in (base, adapted(base, adaptation)))
        kept = [name for name in before if not name.startswith("field.")]
        assert any(name.startswith("exit_gate") for name in kept)
        assert kept == [name for name in after if not name.startswith("field.")]
        for name in kept:
            np.testing.assert_array_equal(after[name], before[name], err_msg=name)


def test_merged_models_are_those_of_their_configuration():
    """Such as an export is loaded by; what is no layer of any is refused."""
    depth = Adaptation("lora", adapter="*:depth", rank=2)
    tuned = moved(adapted(base_of("gated", residual_scale=3.0), depth))
    for each in (moved(adapted(base_of("modulated"), Adaptation("lora", rank=2))), tuned):
        merged = merge(each)
        np.testing.assert_allclose(logits(merged.model), logits(each.model), atol=2e-5)
        fresh = build_config(merged.config.model.config, vocab_size=VOCAB, key=jax.random.key(3))
        assert jax.tree.structure(fresh) == jax.tree.structure(merged.model)
    for field in ("cycle", "modulated", "universal"):
        with pytest.raises(UserError, match=f"a step of the field {field} is not a layer"):
            merge(adapted(base_of(field), depth))


def test_adapters_alone_go_back_on_their_base_only(tmp_path: Path):
    base = base_of("per-layer")
    adaptation = Adaptation("lora", num_steps=5, adapter="qkv:depth,up", rank=2, layers="repeat")
    tuned = moved(adapted(base, adaptation))
    path = tmp_path / "adapter.safetensors"
    save_adapter(tuned.model, adaptation, weights_hash(base.model), path)
    again = load_adapter(base, path)
    np.testing.assert_array_equal(logits(again.model), logits(tuned.model))
    assert again.config == tuned.config
    other = dataclasses.replace(base, model=randomised(base.model, 1e-3))
    with pytest.raises(UserError, match="was made for other weights"):
        load_adapter(other, path)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UserError, match="not a safetensors file"):
        load_adapter(base, path)


def test_layers_are_interpolated_or_repeated():
    field = field_of(base_of("per-layer"))
    old = np.asarray(field.layers.block.branches[0].mixer.qkv.weight)
    for num_layers in (2, 6, 7):
        made: Any = relayered(field, num_layers, "interpolate").layers
        new = np.asarray(made.block.branches[0].mixer.qkv.weight)
        # By NumPy, element by element; the layers sit at t = (i + 1) / N.
        ts, knots = (np.arange(1, n + 1) / n for n in (num_layers, 3))
        flat = old.reshape(3, -1)
        expected = np.stack([np.interp(ts, knots, column) for column in flat.T], axis=1)
        np.testing.assert_allclose(new.reshape(num_layers, -1), expected, atol=1e-5)
    repeated: Any = relayered(field, 6, "repeat").layers
    weights = np.asarray(repeated.block.branches[0].mixer.qkv.weight)
    np.testing.assert_array_equal(weights, old[[0, 0, 1, 1, 2, 2]])


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        *((field, {}) for field in FIELDS),
        ("universal", {}),
        ("modulated", {"time_features": "step"}),
        ("shared", {"lora": "*:depth", "lora_rank": 2}),
        ("shared", {"residual_scale": 3.0}),
    ],
)
def test_another_depth_follows_the_same_flow(field: str, changes: dict[str, Any]):
    """A fine-tuned model starts as the pretrained one at that depth: what `at_depth` gives."""
    base = base_of(field, **changes)
    start = adapted(base, Adaptation("full", num_steps=6))
    assert start.model.horizon == base.model.horizon == 3.0
    expected = logits(base.model.at_depth(6))
    np.testing.assert_allclose(logits(start.model), expected, atol=1e-5)
    np.testing.assert_array_equal(logits(start.model.at_depth()), logits(start.model))
    fresh = build_config(start.config.model.config, vocab_size=VOCAB, key=jax.random.key(3))
    assert jax.tree.structure(fresh) == jax.tree.structure(start.model)
    layers = {"per-layer": 6, "low-rank": 3}
    if field in layers:
        assert field_of(start).num_layers == layers[field]


def test_gates_are_time_features_gates_and_norms():
    params = base_of("gated", time_features="learned", final_norm="time").model
    flags = jax.tree_util.tree_leaves_with_path(trained_arrays(params, "gates"))
    names = {jax.tree_util.keystr(path, simple=True, separator="."): on for path, on in flags}
    on = {name for name, kept in names.items() if kept}
    assert all("gates" in x or "norm" in x or "features" in x or "embedding" in x for x in on)
    assert any("features.cycles" in x for x in on)
    assert any(".gates." in f".{x}" for x in on)
    off = set(names) - on
    assert {"embedding", "positions"} <= off
    assert any(x.endswith("qkv.weight") and "base" in x for x in off)
    assert not any("norm" in x for x in off)
    with pytest.raises(UserError, match="no adapters to train"):
        count_trained(params, "adapters")


def test_mistakes():
    with pytest.raises(UserError, match="did you mean lora"):
        Adaptation("lorra")
    with pytest.raises(UserError, match="did you mean repeat"):
        Adaptation(layers="repeated")
    with pytest.raises(UserError, match="no matrix is named 'qqq'; there are down, out, qkv, up"):
        adapted(base_of("shared"), Adaptation("lora", adapter="qqq"))
    with pytest.raises(UserError, match="adapters are patterns"):
        adapted(base_of("shared"), Adaptation("lora", adapter="qkv:deep"))
    with pytest.raises(UserError, match="needs a model with adapters"):
        make_config({"train": {"trainable": "adapters"}})
    assert set(matrices_of(base_of("shared").model.field)) == {
        f"branches.{i}.mixer.{name}.weight"
        for i, name in ((0, "qkv"), (0, "out"), (1, "up"), (1, "down"))
    }
