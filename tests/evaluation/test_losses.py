"""Evaluation against a plain pass over the split in NumPy's float64."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.data import TokenArray
from qkvflow.errors import UserError
from qkvflow.evaluation.losses import evaluate, evaluation_groups
from qkvflow.lm import LanguageModel, build_config, token_losses
from qkvflow.runs.config import RunConfig
from qkvflow.schemes import make_scheme
from qkvflow.training import model_key

VOCAB = 13


def split_of(num_tokens: int) -> TokenArray:
    tokens = np.random.default_rng(2).integers(0, VOCAB, num_tokens).astype(np.uint8)
    return TokenArray(tokens, 1, 2 * num_tokens, num_tokens, "")


@pytest.fixture(scope="module")
def model(tiny: Callable[..., RunConfig]) -> LanguageModel:
    config = tiny(model={"name": "hybrid", "num_steps": 3})
    return build_config(config.model.config, vocab_size=VOCAB, key=model_key(0))


def plain(model: LanguageModel, tokens: np.ndarray, context: int) -> list[np.ndarray]:
    """The losses of each window, one window at a time."""
    each = jax.jit(lambda inputs, targets: token_losses(model, inputs, targets))
    windows = []
    for start in range(0, len(tokens) - 1, context):
        piece = tokens[start : start + context + 1].astype(np.int32)
        short = len(piece) - 1
        padded = np.pad(piece, (0, context + 1 - len(piece)))
        losses = each(jnp.asarray(padded[None, :-1]), jnp.asarray(padded[None, 1:]))
        windows.append(np.asarray(losses, np.float64)[0, :short])
    return windows


@pytest.mark.parametrize("num_tokens", [2, 16, 17, 18, 500])
def test_the_whole_split_once(model: LanguageModel, num_tokens: int):
    split = split_of(num_tokens)
    found = evaluate(model, split, batch_size=4)
    windows = plain(model, split.tokens, 16)
    losses = np.concatenate(windows)
    assert found.tokens == num_tokens - 1 == len(losses)
    assert found.nats == pytest.approx(losses.mean(), rel=1e-5)
    assert found.bits_per_byte == pytest.approx(losses.mean() / np.log(2) / 2, rel=1e-5)
    assert found.perplexity == pytest.approx(np.exp(losses.mean()), rel=1e-4)
    full = np.stack([window for window in windows if len(window) == 16] or [windows[0]])
    if num_tokens == 500:
        # 31 whole windows and one of 3: the ratio estimator is close to the error of the mean.
        simple = full.mean(axis=1).std(ddof=1) / np.sqrt(len(full))
        assert found.standard_error == pytest.approx(simple, rel=0.1)
        np.testing.assert_allclose(found.by_position[5:], full.mean(axis=0)[5:], rtol=1e-4)
    assert len(found.by_position) == min(16, num_tokens - 1)


def test_splits_and_models_that_are_alike_share_a_program(
    tiny: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
):
    config = tiny(model={"name": "hybrid", "num_steps": 5}).model.config
    one, two = (build_config(config, vocab_size=VOCAB, key=model_key(seed)) for seed in (0, 1))
    traced = []

    def noted(model: LanguageModel, *windows: jax.Array) -> jax.Array:
        traced.append(model.num_steps)
        return token_losses(model, *windows)

    monkeypatch.setattr("qkvflow.evaluation.losses.token_losses", noted)
    found = [evaluate(model, split_of(n), batch_size=4) for model in (one, two) for n in (100, 500)]
    assert traced == [5]
    for model, each in zip((one, one, two, two), found, strict=True):
        losses = np.concatenate(plain(model, split_of(each.tokens + 1).tokens, 16))
        assert each.nats == pytest.approx(losses.mean(), rel=1e-5)
    evaluate(one.at_depth(2), split_of(100), batch_size=4)
    assert traced == [5, 2]


def test_the_batch_does_not_matter_and_twice_is_the_same(model: LanguageModel):
    split = split_of(500)
    one, again, other = (evaluate(model, split, batch_size=size) for size in (4, 4, 7))
    assert one.nats == again.nats
    assert one.nats == pytest.approx(other.nats, rel=1e-6)


def test_part_of_a_split_is_spread_evenly(model: LanguageModel):
    found = evaluation_groups(1601, 16, 2, max_tokens=160)
    chosen = found.starts[found.lengths > 0]
    np.testing.assert_array_equal(chosen, np.arange(10) * 160)
    assert sum(found.counts) == 5
    whole = evaluation_groups(1601, 16, 2, max_tokens=10**9)
    assert int(whole.lengths.sum()) == 1600
    assert evaluate(model, split_of(1601), batch_size=2, max_tokens=160).tokens == 160


def test_another_depth_and_another_scheme(model: LanguageModel):
    split = split_of(200)
    base = evaluate(model, split)
    finer = evaluate(model.at_depth(12), split)
    rk4 = evaluate(model.at_depth(3, make_scheme("rk4")), split)
    assert len({base.nats, finer.nats, rk4.nats}) == 3
    assert evaluate(model.at_depth(3), split).nats == base.nats
    assert abs(finer.nats - base.nats) < 0.5


def test_a_longer_context_than_learned_positions_is_refused(model: LanguageModel):
    with pytest.raises(UserError, match="do not fit"):
        evaluate(model, split_of(200), context=32)
    with pytest.raises(UserError, match="no tokens to predict"):
        evaluate(model, split_of(1))
