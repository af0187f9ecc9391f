"""Random depth grids and the consistency penalty: what is drawn, what is computed, and resuming."""

import shutil
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import rel_entr, softmax
from tiny_models import VOCAB, random_tokens, tiny

from qkvflow.blocks.base import Rows
from qkvflow.cli import main
from qkvflow.errors import UserError
from qkvflow.lm import LanguageModel, count_flops
from qkvflow.runs.config import RunConfig, make_config
from qkvflow.runs.depths import Jitter, parse_jitter
from qkvflow.runs.rundir import read_lines
from qkvflow.runs.sections import TrainConfig
from qkvflow.schemes import shifted_edges
from qkvflow.schemes.base import ApplyFull, total_increment
from qkvflow.training import resume, train
from qkvflow.training.objective import make_objective, step_flops
from qkvflow.training.step import depth_key

TOKENS, TARGETS = random_tokens(2, 5, seed=0), random_tokens(2, 5, seed=1)


def model() -> LanguageModel:
    return tiny("hypernet", scheme="euler")


@eqx.filter_jit
def values(model: LanguageModel, objective: Any, key: Any) -> tuple[Any, Any]:
    return objective(model, TOKENS, TARGETS, key=None, depth_key=key)


def cross_entropy(logits: Any) -> float:
    """By SciPy, of logits `batch seq vocab`."""
    p = softmax(np.asarray(logits, np.float64), axis=-1).reshape(-1, VOCAB)
    return float(-np.log(p[np.arange(len(p)), np.asarray(TARGETS).reshape(-1)]).mean())


forward = eqx.filter_jit(lambda model: model(TOKENS))


@eqx.filter_jit
def on_edges(model: LanguageModel, edges: Any) -> Any:
    """Euler's method by hand: steps of any lengths, weights at the end of each."""
    rows = Rows(2, 5)
    x = model.embed(TOKENS, rows)
    for begin, end in pairwise(edges):
        increment = total_increment(model.field.at(end), x, ApplyFull(rows, None))
        x = x + model.horizon * (end - begin) * increment
    return model.logits(x)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_random_grid_is_tongs(share: float):
    edges = np.asarray(shifted_edges(4, jnp.float32(share)))
    np.testing.assert_allclose(np.diff(edges), [share / 4, 0.25, 0.25, (2 - share) / 4], atol=1e-6)
    assert (edges[0], edges[-1]) == (0.0, 1.0)


def test_offset_integrates_on_the_grid_it_drew():
    seen = set()
    for step in range(3):
        key = depth_key(5, jnp.int32(step))
        share = jax.random.uniform(jax.random.split(key)[1])
        objective, entropy = values(model(), OFFSET, key)
        expected = cross_entropy(on_edges(model(), shifted_edges(model().num_steps, share)))
        np.testing.assert_allclose(entropy, expected, rtol=1e-5)
        assert objective == entropy
        seen.add(float(entropy))
    assert len(seen) == 3


OFFSET = make_objective(TrainConfig(depth_jitter="offset"))
NUMBERS = make_objective(TrainConfig(depth_jitter="1,2,5", consistency=0.7))


@cache
def by_number() -> dict[int, tuple[float, float]]:
    """The cross-entropy at every number that may be drawn, and the divergence to twice as many."""
    found = {}
    for number in (1, 2, 5):
        coarse, fine = (np.asarray(forward(model().at_depth(n))) for n in (number, 2 * number))
        gaps = rel_entr(softmax(coarse, axis=-1), softmax(fine, axis=-1)).sum(axis=-1)
        found[number] = (cross_entropy(coarse), gaps.mean())
    return found


def test_numbers_are_drawn_evenly_and_the_penalty_is_the_divergence():
    """Each of the three numbers comes up, with the loss of that depth and the divergence (by SciPy)
    to twice as many steps."""
    expected = by_number()
    counts = dict.fromkeys(expected, 0)
    for step in range(60):
        objective, entropy = values(model(), NUMBERS, depth_key(0, jnp.int32(step)))
        number = min(expected, key=lambda n: abs(expected[n][0] - float(entropy)))
        plain, gap = expected[number]
        np.testing.assert_allclose(entropy, plain, rtol=1e-5)
        np.testing.assert_allclose(objective, plain + 0.7 * gap, rtol=1e-5)
        counts[number] += 1
    # Of 60 even draws, fewer than 8 of one kind have a probability of 1e-4.
    assert min(counts.values()) >= 8


@eqx.filter_jit
def gradient(model: LanguageModel, objective: Any, key: Any) -> Any:
    return eqx.filter_grad(lambda m: values(m, objective, key)[0])(model)


def test_a_drawn_number_has_the_gradient_of_that_number():
    """Differentiated inside the branch that was taken, against no branches at all."""
    key = depth_key(0, jnp.int32(0))
    entropy = float(values(model(), NUMBERS, key)[1])
    [number] = [n for n, (nats, _) in by_number().items() if abs(nats - entropy) < 1e-5]
    drawn = make_objective(TrainConfig(depth_jitter=str(number), consistency=0.7))
    pairs = zip(
        jax.tree.leaves(gradient(model(), NUMBERS, key)),
        jax.tree.leaves(gradient(model(), drawn, key)),
        strict=True,
    )
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_flops_count_what_is_computed():
    plain = count_flops(model()).per_step(10)
    assert step_flops(TrainConfig(), model(), 10) == plain
    assert step_flops(TrainConfig(depth_jitter="offset"), model(), 10) == plain
    both = sum(count_flops(model().at_depth(n)).per_step(10) for n in (2, 4, 4, 8)) // 2
    assert step_flops(TrainConfig(depth_jitter="2,4", consistency=1.0), model(), 10) == both


def test_resumed_runs_draw_the_same(tiny: Callable[..., RunConfig], tmp_path: Path):
    config = tiny(
        train={"steps": 8, "depth_jitter": "offset+1-2", "consistency": 0.5, "log_every": 1},
        checkpoint={"every": 4},
    )
    record = train(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "8")
    (tmp_path / "cut" / "record.json").unlink()
    again = resume(tmp_path / "cut")
    assert again["losses"] == record["losses"]
    both = (read_lines(tmp_path / each / "metrics.jsonl") for each in ("whole", "cut"))
    one, two = ([{**line, "seconds": None} for line in lines] for lines in both)
    assert one == two
    assert len({line["loss"] for line in one}) > 8
    with pytest.raises(UserError, match=r"train\.consistency was 0\.5"):
        resume(tmp_path / "cut", overrides={"train": {"consistency": 0.1}})


def test_parsing():
    assert parse_jitter("none") == Jitter()
    assert parse_jitter("offset+4-6") == Jitter(True, (4, 5, 6))
    assert parse_jitter("3,6,12") == Jitter(False, (3, 6, 12))
    for wrong in ("ofset", "0-3", "4-", "8-4", "1-20", "offset+", "0"):
        with pytest.raises(UserError, match=r"train\.depth_jitter"):
            make_config({"train": {"depth_jitter": wrong}})
    with pytest.raises(UserError, match="need a fixed scheme"):
        make_config({"model": {"scheme": "adaptive"}, "train": {"consistency": 0.1}})


def test_options_take_dashes(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    words = ["train", "--train.depth-jitter", "ofset", "--out", str(tmp_path / "run")]
    assert main(words) == 2
    assert "must be none, offset" in capsys.readouterr().err
