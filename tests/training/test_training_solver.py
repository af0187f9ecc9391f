"""Solvers in training and evaluation: every batch is looked at, and counted as it was run."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import SEQ, VOCAB, tiny

from qkvflow.data import TokenArray
from qkvflow.evaluation import evaluate
from qkvflow.lm import abstract
from qkvflow.records import curve
from qkvflow.runs.config import RunConfig
from qkvflow.schemes import Adaptive
from qkvflow.training import train
from qkvflow.training.objective import step_flops
from qkvflow.training.reporter import SilentReporter


class Notes(SilentReporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


def test_every_batch_of_an_evaluation_is_looked_at():
    """Batches of one window, each solved by itself with steps enough, say what to expect."""
    tokens = np.random.default_rng(0).integers(0, VOCAB, 12 * SEQ + 1).astype(np.uint8)
    split = TokenArray(tokens, 1, len(tokens), len(tokens), "")
    model = tiny("gated", scheme="adaptive", horizon=6.0, tolerance=1e-4)
    work = eqx.filter_jit(lambda x: model.integrate(x).num_evaluations)
    windows = tokens[:-1].astype(np.int32).reshape(12, 1, SEQ)
    evaluations = np.array([int(work(jnp.asarray(each))) for each in windows])
    # 6 evaluations for every step, accepted or not, and a few more.
    steps = evaluations // 6
    most = int(np.sort(steps)[6])
    short = dataclasses.replace(model, scheme=Adaptive(rtol=1e-4, atol=1e-4, max_steps=most))
    found = evaluate(short, split, batch_size=1).solved
    assert found is not None
    assert found.batches == 12
    assert found.missed == np.count_nonzero(steps > most)
    assert 0 < found.missed < 12
    enough = evaluate(model, split, batch_size=1).solved
    assert enough is not None
    assert enough.missed == 0
    assert enough.evaluations == pytest.approx(evaluations.mean())


@pytest.mark.parametrize(("tolerance", "arrives"), [(1e-4, True), (1e-12, False)])
def test_training_counts_what_its_solver_did(
    tiny: Callable[..., RunConfig], tmp_path: Path, tolerance: float, arrives: bool
):
    config = tiny(
        model={
            "field": "shared",
            "scheme": "fixed-point",
            "injection": "diagonal",
            "num_steps": 1,
            "tolerance": tolerance,
            "dropout": 0.1,
        },
        train={"steps": 4, "eval_every": 2, "log_every": 2, "eval_tokens": 64, "grad_accum": 2},
    )
    told = Notes()
    record = train(config, tmp_path / "run", reporter=told)
    solver = record["solver"]
    assert solver["train"]["batches"] == 4
    for part in ("train", "validation", "test"):
        work = solver[part]
        # Some batches come to rest to the last bit, which is less than any tolerance.
        assert (work["missed"] == 0) == arrives
        assert 2 <= work["evaluations"] <= 64
        assert (work["residual"] < 1e-3) or not arrives
    said = [line for line in told.lines if "no fixed point" in line]
    assert bool(said) != arrives
    assert arrives or f"in {solver['train']['missed']} of 4 training steps" in said[-1]
    lines = curve(tmp_path / "run").train
    assert lines[-1]["evaluations"] == pytest.approx(solver["train"]["evaluations"])
    assert lines[-1]["missed"] == solver["train"]["missed"]
    vocab = record["data"]["vocab_size"]
    shapes = abstract(config.model.config, vocab_size=vocab)
    made = solver["train"]["evaluations"]
    flops = step_flops(config.train, shapes, config.tokens_per_step, evaluations=made)
    assert record["flops"]["per_step"] == flops
    once = step_flops(config.train, shapes, config.tokens_per_step)
    assert flops > 1.5 * once
    assert record["budget"]["flops"] == 4 * flops
