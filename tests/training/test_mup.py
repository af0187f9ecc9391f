"""mup: standard at its own width, updates of the sizes its table says, and activations that keep
their size when the width grows, where the standard parametrisation's do not."""

from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from qkvflow.blocks.base import map_by_path
from qkvflow.cli import main
from qkvflow.distributed import memory
from qkvflow.errors import UserError
from qkvflow.experiment.coordinate_check import coordinate_check
from qkvflow.lm import build
from qkvflow.report.coordinates import coordinates, verdict
from qkvflow.runs.config import make_config
from qkvflow.runs.sections import OptimConfig
from qkvflow.runs.weights import named_arrays
from qkvflow.training.optim import optimiser
from qkvflow.training.optimisers.base import width_scales

SHAPE: dict[str, Any] = {"num_steps": 2, "num_heads": 2, "context": 8, "mup_width": 32}


def model(width: int, name: str = "standard", **changes: Any) -> Any:
    shape = {**SHAPE, "d_model": width, **changes}
    return build(name, vocab_size=11, key=jax.random.key(0), **shape)


def test_at_its_own_width_it_is_standard():
    tokens = jnp.arange(8)[None] % 11
    one, other = (model(32, parametrization=each) for each in ("standard", "mup"))
    arrays = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    assert all(np.array_equal(a, b) for a, b in arrays)
    np.testing.assert_array_equal(one(tokens), other(tokens))


@pytest.mark.parametrize("tied", [True, False])
def test_sizes_at_four_times_the_width(tied: bool):
    wide, usual = (
        model(128, parametrization=each, tied=tied, num_heads=4) for each in ("mup", "standard")
    )
    of = jax.tree.leaves(wide.field), jax.tree.leaves(usual.field)
    for a, b in zip(*of, strict=True):
        scaled = b.ndim == 3 and b.shape[-2] > 2  # Stacks of matrices.
        np.testing.assert_allclose(a, b * (0.5 if scaled else 1.0), rtol=1e-6)
    # Embeddings are as large at any width, and logits are divided by the ratio.
    np.testing.assert_allclose(wide.embedding, 2.0 * usual.embedding, rtol=1e-6)
    h = jax.random.normal(jax.random.key(1), (3, 128))
    np.testing.assert_allclose(wide.project(h), usual.project(h) * 2.0 / 4.0, rtol=1e-5)
    # Heads of 32: scores are divided by 32 / sqrt(16), not by sqrt(32).
    assert wide.field.layers.block.branches[0].mixer.query_scale == pytest.approx(0.5**0.5)


@cache
def first_updates(name: str, field: str) -> dict[str, tuple[float, float]]:
    """Of every array, the root mean square of the first update at a rate of 1 without decay, and
    what mup makes of it at four times the width."""
    params = eqx.filter(model(128, field, parametrization="mup", d_time=4), eqx.is_array)
    random = np.random.default_rng(0)
    gradients = jax.tree.map(
        lambda leaf: jnp.asarray(random.normal(size=leaf.shape), jnp.float32), params
    )
    optim = OptimConfig(name=name, weight_decay=0.0, max_grad_norm=0.0)
    found: dict[str, list[float]] = {}
    for ratio in (None, 4.0):
        rule = optimiser(optim, optax.constant_schedule(1.0), width_ratio=ratio)
        update = jax.jit(rule.update)(gradients, rule.init(params), params)[0]

        def take(nodes: list[Any], names: list[Any], leaf: Any) -> None:
            size = float(np.sqrt(np.mean(np.square(leaf))))
            found.setdefault(".".join(map(str, names)), []).append(size)

        map_by_path(update, take)
    return {path: (plain, scaled / plain) for path, (plain, scaled) in found.items()}


@pytest.mark.parametrize(
    ("name", "size", "factor"), [("adamw", 1.0, 0.25), ("lion", 1.0, 0.25), ("muon", 0.2, 0.5)]
)
def test_updates_of_matrices_shrink_with_the_width(name: str, size: float, factor: float):
    """AdamW's and Lion's first update is a sign, Muon's about 0.2 times an orthogonal matrix with
    entries of about 1."""
    updates = first_updates(name, "standard")
    for path, (plain, scaled) in updates.items():
        hidden = path.endswith("weight") and "norm" not in path
        assert plain == pytest.approx(size if hidden else 1.0, rel=0.2), path
        assert scaled == pytest.approx(factor if hidden else 1.0, rel=1e-5), path
    assert sum(path.endswith("weight") for path in updates) >= 4


def test_factors_and_maps_follow_what_they_sum_over():
    low_rank = first_updates("adamw", "low-rank")
    ends = {path.rpartition(".")[2]: f for path, (_, f) in low_rank.items() if "factors" in path}
    assert ends == {"0": pytest.approx(0.25), "1": pytest.approx(1.0)}
    maps = {path: f for path, (_, f) in first_updates("adamw", "tong").items() if ".maps." in path}
    assert maps
    for path, factor in maps.items():
        matrix = path.endswith("weight") and "norm" not in path
        assert factor == pytest.approx(0.25 if matrix else 1.0), path


def test_adapters_and_maps_to_scales_follow_what_they_sum_over():
    small, large = (
        model(width, "standard", field="modulated", lora="*", lora_rank=2, d_time=8)
        for width in (16, 64)
    )
    scales = jax.tree.leaves(width_scales(large, 4.0, 1.0))
    before, after = named_arrays(small), named_arrays(large)
    for (name, leaf), scale in zip(after.items(), scales, strict=True):
        if "adapters" in name or ".maps." in name or name.endswith("qkv.weight"):
            grows = leaf.shape[-2] > before[name].shape[-2]
            assert scale == (0.25 if grows else 1.0), name


def test_an_optimiser_without_a_rule_is_refused():
    for name in ("sgd", "schedule-free"):
        with pytest.raises(UserError, match="mup has no rule"):
            optimiser(OptimConfig(name=name), optax.constant_schedule(1.0), width_ratio=2.0)
    with pytest.raises(UserError, match="did you mean mup"):
        make_config({"model": {"parametrization": "mu"}})


def test_a_width_that_does_not_fit_is_refused_before_it_runs(
    text: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    data = ["--data", f"file:{text}?split=0.8,0.1,0.1", "--tokenizer", "char"]
    shape = ["--layers", "1", "--heads", "1", "--context", "8", "--batch-size", "2"]
    words = ["coordinate-check", *data, *shape, "--widths", "8,16", "--updates", "1"]
    monkeypatch.setattr(memory, "memory_limit", lambda: 1000)
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.err.startswith("qkvflow: out of memory: a step at width 8 takes ")
    assert said.err.count("\n") == 1
    monkeypatch.undo()
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("width 8, seed 0\nwidth 16, seed 0\n")


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_activations_keep_their_size(text: Any, name: str):
    """The test of the whole: what updates change of the logits and of the last state does not
    depend on the width under mup, and grows with it under the standard parametrisation."""
    content = {
        "model": {**SHAPE, "context": 16},
        "data": {"spec": f"file:{text}?split=0.8,0.1,0.1", "tokenizer": "char"},
        "train": {"batch_size": 8},
        "optim": {"name": name, "lr": 3e-3},
    }
    slopes = {}
    found: dict[str, Any] = {}
    for each in ("standard", "mup"):
        shape = {**content["model"], "parametrization": each}
        found = coordinate_check({**content, "model": shape}, (32, 256), updates=3)
        slopes[each] = found["slopes"]
        print(each, found["slopes"], found["changes"])
        assert [panel.title for panel in coordinates(found).panels][-1].startswith("logits")
    assert abs(slopes["mup"]["logits"]) < 0.2
    assert abs(slopes["mup"]["state after step 2"]) < 0.25
    assert slopes["standard"]["logits"] > 0.4
    assert slopes["standard"]["logits"] > slopes["mup"]["logits"] + 0.4
    assert "grows as the width" in verdict({**found, "slopes": slopes["standard"]})
