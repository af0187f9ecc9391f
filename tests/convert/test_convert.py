"""Fields fitted to trained layers: exact where they can be, nearest where they cannot."""

import dataclasses
import itertools
import json
import string
from functools import cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from tiny_models import TINY, VOCAB, make, random_tokens, randomised

from qkvflow.cli import main
from qkvflow.convert import Conversion, convert, layers_in_effect, lost
from qkvflow.convert.gating import alternate
from qkvflow.convert.layers import tied, truncated
from qkvflow.data.tokenizers import CharTokenizer
from qkvflow.errors import UserError
from qkvflow.fields import PerLayer, Shared
from qkvflow.lm import count_parameters
from qkvflow.runs.config import make_config
from qkvflow.runs.load import Trained, load
from qkvflow.schemes import grid

LAYERS = 4
TOKENIZER = CharTokenizer(string.ascii_lowercase[:VOCAB])
_logits = eqx.filter_jit(lambda model, tokens: model(tokens))


@cache
def source(**changes: Any) -> Trained:
    """A per-layer model in which every array of every layer is another."""
    config = make_config({"model": {**TINY, "num_steps": LAYERS, **changes}})
    model = make(config.model.config)
    assert isinstance(model.field, PerLayer)
    field, injection = (randomised(each, 0.2) for each in (model.field, model.injection))
    model = dataclasses.replace(model, field=field, injection=injection)
    return Trained(model, TOKENIZER, config)


def difference(one: Trained, other: Trained) -> float:
    tokens = random_tokens(2, TINY["context"])
    return float(np.abs(_logits(one.model, tokens) - _logits(other.model, tokens)).max())


LLAMA = {
    "block": "attention+swiglu",
    "norm": "rmsnorm",
    "bias": False,
    "positions": "rope",
    "tied": False,
}


@pytest.mark.parametrize(
    ("field", "options", "changes"),
    [
        ("low-rank", {"rank": 32}, {}),
        ("low-rank", {"rank": 40}, {**LLAMA, "scheme": "euler", "composition": "parallel"}),
        ("basis", {"num_basis": LAYERS}, {}),
        ("basis", {"num_basis": LAYERS}, {"injection": "concat", "residual_scale": 2.0}),
        ("basis", {"num_basis": LAYERS, "basis": "chebyshev"}, {"block": "selective-ssm"}),
        ("basis", {"num_basis": LAYERS, "basis": "bspline"}, LLAMA),
        ("cycle", {"layers_per_loop": LAYERS}, {}),
        ("cycle", {"layers_per_loop": LAYERS}, {"scheme": "euler", "horizon": 2.0}),
        ("looped", {"layers_per_loop": 2}, LLAMA),
        ("looped", {"layers_per_loop": 1, "prelude": 3, "coda": 0}, {}),
    ],
)
def test_nothing_is_lost_at_full_size(field: str, options: dict[str, Any], changes: dict[str, Any]):
    before = source(**changes)
    for base in ("average", "stepwise", "lower"):
        after = convert(before, Conversion(field, base, options))
        assert max(lost(before, after).values()) < 1e-5
    assert difference(before, after) < 1e-4


def test_an_exit_gate_stays_and_an_injection_keeps_layers_apart():
    before = source(exit_gate=True, injection="add")
    after = convert(before, Conversion("shared"))
    gates = [each.model.exit_gate for each in (before, after)]
    assert jax.tree.all(jax.tree.map(np.array_equal, *gates))
    with pytest.raises(UserError, match="enters before every layer"):
        convert(before, Conversion("cycle", options={"layers_per_loop": 2}))


def gated_source(**changes: Any) -> Trained:
    """A per-layer model whose layers are those of a gated field, with a bias for all of them."""
    shape = {**TINY, "num_steps": LAYERS, "field": "gated", **changes}
    gated = make(make_config({"model": shape}).model.config)
    gated = dataclasses.replace(gated, field=randomised(gated.field, 0.1))
    config = make_config({"model": {**shape, "field": "per-layer"}})
    layers = PerLayer(Shared(gated.field.stack(grid(LAYERS))), LAYERS)
    return Trained(dataclasses.replace(gated, field=layers), TOKENIZER, config)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gate": "both", "gate_activation": "centred"},
        {"block": "attention+ssm", "time_features": "layers"},
    ],
)
def test_layers_of_a_gated_field_are_found_again(changes: dict[str, Any]):
    before = gated_source(**changes)
    after = convert(before, Conversion("gated"))
    assert lost(before, after)["all"] < 1e-5
    assert difference(before, after) < 1e-4
    # A base alone is far from it.
    assert lost(before, convert(before, Conversion("shared")))["all"] > 0.05


def test_alternating_least_squares_reaches_the_best_rank_one():
    """With positive values and gates on one axis, the best fit of a channel is its first singular
    pair; and no sweep makes the error larger."""
    values = np.random.default_rng(0).uniform(0.5, 2.0, (5, 7, 6))
    base, [gates], errors = alternate(values, (0,), sweeps=200)
    assert all(b <= a * (1 + 1e-12) for a, b in itertools.pairwise(errors))
    for channel in range(7):
        left, size, right = np.linalg.svd(values[:, channel], full_matrices=False)
        best = size[0] * np.outer(left[:, 0], right[0])
        np.testing.assert_allclose(np.outer(gates[:, channel], base[channel]), best, atol=1e-8)
    _, _, errors = alternate(np.random.default_rng(1).normal(size=(4, 5, 6)), (0, 1), sweeps=60)
    assert all(b <= a * (1 + 1e-12) for a, b in itertools.pairwise(errors))


def test_truncation_is_the_nearest_of_its_rank():
    matrices = np.random.default_rng(0).normal(size=(3, 8, 5))
    down, up = truncated(matrices, 2)
    left = np.linalg.norm(matrices - np.asarray(down) @ np.asarray(up), axis=(1, 2))
    # Eckart and Young: what is left is the rest of the spectrum.
    rest = np.sqrt(np.square(np.linalg.svd(matrices, compute_uv=False)[:, 2:]).sum(axis=1))
    np.testing.assert_allclose(left, rest, rtol=1e-5)


def test_shared_bases():
    values = np.arange(6.0)[:, None]
    assert tied(values, 2, "average")[:, 0].tolist() == [2.0, 3.0]
    assert tied(values, 2, "lower")[:, 0].tolist() == [0.0, 1.0]
    assert tied(values, 3, "stepwise")[:, 0].tolist() == [0.0, 3.0, 5.0]
    assert tied(values, 1, "average")[0, 0] == 2.5


def test_less_is_lost_with_more():
    before = source()
    found = [
        [lost(before, convert(before, Conversion(field).of_size(size)))["all"] for size in sizes]
        for field, sizes in (("low-rank", (1, 4, 12)), ("basis", (1, 2, 3)), ("cycle", (1, 2, 4)))
    ]
    for values in found:
        assert values == sorted(values, reverse=True)
        assert values[0] > values[-1] + 0.1
    # One basis function is the average, and so is rank nothing.
    shared = lost(before, convert(before, Conversion("shared")))["all"]
    assert found[1][0] == pytest.approx(shared, rel=1e-4)
    assert found[2][0] == pytest.approx(shared, rel=1e-4)


def test_layers_in_effect_are_what_runs():
    """A stack of the layers in effect is the looped model itself."""
    before = source(**LLAMA)
    after = convert(before, Conversion("looped", "lower", {"layers_per_loop": 1}))
    layers = layers_in_effect(after.model, 2)
    stack = jax.tree.map(lambda *leaves: np.stack(leaves), *layers)
    unrolled = dataclasses.replace(before.model, field=PerLayer(Shared(stack), LAYERS))
    assert difference(dataclasses.replace(before, model=unrolled), after) < 1e-5


@pytest.mark.parametrize(
    ("field", "options", "changes", "word"),
    [
        ("cycle", {"layers_per_loop": 3}, {}, "divide"),
        ("looped", {"prelude": 2, "coda": 2}, {}, "leave none of 4 for the loop"),
        ("low-rank", {"prelude": 1}, {}, "choose --field looped"),
        ("cycle", {"layers_per_loop": 1, "coda": 1}, {}, "choose --field looped"),
        ("looped", {}, {"scheme": "euler"}, "residual"),
        ("cycle", {}, {"composition": "parallel"}, "one after another"),
        ("gated", {"gate": "full"}, {}, "single elements"),
        ("nonsense", {}, {}, "shared"),
        ("low-rank", {}, {"num_layers": 2}, "own depth"),
    ],
)
def test_refusals(field: str, options: Any, changes: Any, word: str):
    with pytest.raises(UserError, match=word):
        convert(source(**changes), Conversion(field, "average", options))


def test_verb(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], chromium: Any):
    out = tmp_path / "converted"
    asked = ["--field", "low-rank", "--rank", "16", "--ranks", "1,4", "--max-tokens", "512"]
    assert main(["convert", str(finished), *asked, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    found = json.loads((out / "conversion.json").read_text())
    assert [(each["size"], each["chosen"]) for each in found["sizes"]] == [
        (1, False),
        (4, False),
        (16, True),
    ]
    # At full rank the loss is the original's, and below it is not.
    losses = [each["nats"] for each in found["sizes"]]
    assert losses[-1] == pytest.approx(found["source"]["nats"], abs=1e-4)
    assert abs(losses[0] - losses[-1]) > 1e-3
    assert f"{losses[0]:.4f}" in printed
    assert "0.mixer.qkv.weight" in printed
    made, before = load(out), load(finished)
    assert made.config.model.config.field == "low-rank"
    assert found["sizes"][-1]["parameters"] == count_parameters(made.model).total
    tokens = np.arange(16)[None] % before.model.vocab_size
    np.testing.assert_allclose(
        _logits(made.model, tokens), _logits(before.model, tokens), atol=1e-4
    )
    # Every verb takes it.
    assert main(["eval", str(out), "--max-tokens", "512", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["nats"] == pytest.approx(losses[-1])
    chromium.open(out / "conversion.html")
    assert chromium.count("figure") == 2
    assert chromium.count("svg path") > 0
    assert not chromium.errors
    assert main(["convert", str(finished), *asked, "--out", str(out)]) == 2
    assert main(["convert", str(out), *asked, "--out", str(tmp_path / "x")]) == 2
    shared = ["--field", "shared", "--ranks", "1", "--out", str(tmp_path / "x")]
    assert main(["convert", str(finished), *shared]) == 2
    rank = ["--field", "shared", "--rank", "4", "--out", str(tmp_path / "x")]
    assert main(["convert", str(finished), *rank]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert "choose another --out" in lines[0]
    assert "--rank is for low-rank, not for shared" in lines[3]
