"""Early exit: nothing changes at threshold 0, and what is skipped is what the rule says."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from sharp_models import VOCAB, prompt_of, tiny

from qkvflow import build
from qkvflow.blocks.base import Rows
from qkvflow.errors import UserError
from qkvflow.generation import exit_quality, generate, generate_early_exit, make_early_exit
from qkvflow.generation.early_exit import EarlyExit
from qkvflow.lm import LanguageModel

MODELS = [
    ("standard", {}),
    ("time-indexed-ssm", {}),
    ("mamba", {}),
    ("tong", {"scheme": "heun"}),
]


def deep(name: str, num_steps: int = 4, **changes: object) -> LanguageModel:
    return tiny(name, num_steps=num_steps, **changes)


@pytest.mark.parametrize(("name", "changes"), MODELS)
def test_threshold_zero_is_full_depth(name: str, changes: dict):
    model, prompts = deep(name, 2, **changes), [prompt_of(5), prompt_of(5, seed=1)]
    rule = make_early_exit()
    plain = generate(model, prompts, num_tokens=8, seed=1)
    made = generate_early_exit(model, prompts, rule=rule, num_tokens=8, seed=1)
    assert made.tokens == plain
    assert made.depths == [[2] * 8] * 2
    assert (made.average_depth, made.average_run) == (2.0, 2.0)


def test_a_high_threshold_leaves_after_one_step():
    model, prompt = deep("standard"), prompt_of(5)
    rule = make_early_exit(entropy=np.log(VOCAB) + 1.0)
    made = generate_early_exit(model, [prompt], rule=rule, num_tokens=8, temperature=0.0)
    # The first token comes from the prompt's own pass.
    assert made.depths == [[4] + [1] * 7]
    assert made.average_run == made.average_depth == 11 / 8


@pytest.mark.parametrize("name", ["standard", "time-indexed-ssm"])
def test_a_batch_is_its_sequences_alone(name: str):
    model, prompts = deep(name), [prompt_of(n, seed=n) for n in (5, 3, 5)]
    rule = make_early_exit(change=0.3)
    options = {"rule": rule, "num_tokens": 8, "seed": 2}
    together = generate_early_exit(model, prompts, **options)
    alone = generate_early_exit(model, prompts, **options, batch_size=1)
    assert together.tokens == alone.tokens
    assert together.depths == alone.depths
    assert 1.0 < alone.average_depth == alone.average_run < 4.0
    # What a batch saves is what its deepest sequence saves.
    assert together.average_run > alone.average_run


def reference_step(
    model: LanguageModel, rule: EarlyExit, text: list[int]
) -> tuple[np.ndarray, list[int]]:
    """Early exit without caches, for residual attention+MLP: one state per token and depth.

    Token i leaves at its own depth; from there on its state stays, which is what later tokens
    attend to.
    """
    seq = len(text)
    assert model.positions is not None
    x = np.asarray(model.embedding)[text] + np.asarray(model.positions)[:seq]
    left, depths = np.zeros(seq, bool), np.zeros(seq, int)
    before = np.full((seq, VOCAB), np.inf, np.float32)
    logits = np.zeros((seq, VOCAB))

    @eqx.filter_jit
    def after_step(model: LanguageModel, x: jax.Array, left: jax.Array, step: jax.Array) -> Any:
        for branch in model.field.at((step + 1) / model.num_steps).branches:
            y = branch(x, Rows(1, seq))
            x = jnp.where(left[:, None], x, x + model.horizon / model.num_steps * y)
        return x, model.logits(x)

    settled = eqx.filter_jit(EarlyExit.settled)
    for step in range(model.num_steps):
        x, new = after_step(model, jnp.asarray(x), jnp.asarray(left), jnp.float32(step))
        logits = np.where(left[:, None], logits, new)
        depths += ~left
        now = softmax(np.asarray(new), axis=-1)
        left |= np.asarray(settled(rule, jnp.asarray(now), jnp.asarray(before)))
        before = now
    return logits, depths.tolist()


def test_skipped_depths_are_filled_from_the_state_at_exit():
    model, text = deep("standard"), prompt_of(9)
    rule = make_early_exit(change=0.3, entropy=1.0)
    logits, depths = reference_step(model, rule, text[:-1])
    assert len(set(depths)) > 1
    quality = exit_quality(model, jnp.array([text]), rule)
    log_probs = log_softmax(logits, axis=-1)
    loss = -np.mean([log_probs[i, token] for i, token in enumerate(text[1:])])
    assert quality.average_depth == pytest.approx(np.mean(depths))
    assert quality.average_run == pytest.approx(np.mean(depths))
    assert quality.loss == pytest.approx(loss, abs=1e-4)
    assert quality.loss != pytest.approx(quality.full_loss, abs=1e-4)
    assert 0.0 <= quality.agreement <= 1.0
    full = exit_quality(model, jnp.array([text]), make_early_exit())
    assert full.loss == pytest.approx(full.full_loss, abs=1e-5)
    assert (full.agreement, full.average_depth, full.num_steps) == (1.0, 4.0, 4)


def test_rule():
    rule = make_early_exit(entropy=0.5, change=0.1)
    now = jnp.array([[0.95, 0.05], [0.5, 0.5], [0.5, 0.5]])
    before = jnp.array([[0.0, 1.0], [0.55, 0.45], [0.65, 0.35]])
    assert rule.settled(now, before).tolist() == [True, True, False]


def test_refusals():
    for options in ({"entropy": -1.0}, {"change": float("nan")}):
        with pytest.raises(UserError, match="threshold"):
            make_early_exit(**options)
    model, rule = tiny("tong", scheme="adaptive"), make_early_exit(change=0.1)
    with pytest.raises(UserError, match="adaptive"):
        generate_early_exit(model, [[1]], rule=rule, num_tokens=2)
    with pytest.raises(UserError, match="adaptive"):
        exit_quality(model, jnp.array([[1, 2]]), rule)
    with pytest.raises(UserError, match="at least 2"):
        exit_quality(deep("standard"), jnp.array([[1]]), rule)


def test_sequences_of_a_batch_leave_a_looped_model_as_they_do_alone():
    """Those that have left keep the coda's slots of the step at which they did."""
    shape = {"d_model": 32, "num_heads": 2, "num_steps": 4, "context": 64, "init_std": 0.5}
    ends = {"prelude": 1, "coda": 1}
    model = build("parcae", vocab_size=VOCAB, key=jax.random.key(0), size="tiny", **shape, **ends)
    prompts = [prompt_of(n, seed=seed) for seed, n in enumerate((4, 6, 4))]
    options: dict[str, Any] = {"rule": make_early_exit(entropy=2.8), "num_tokens": 12}
    together = generate_early_exit(model, prompts, temperature=0.0, **options)
    assert len({depth for each in together.depths for depth in each}) > 1
    for index, prompt in enumerate(prompts):
        alone = generate_early_exit(model, [prompt], temperature=0.0, **options)
        assert alone.tokens == [together.tokens[index]]
        assert alone.depths == [together.depths[index]]
