"""Speculation changes the speed, never the text. (Greedy over the zoo: see test_generation.)"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sharp_models import full_logits, prompt_of, tiny

from qkvflow.errors import UserError
from qkvflow.generation import generate, generate_speculative, make_sampler
from qkvflow.lm import LanguageModel


@pytest.mark.parametrize("name", ["tong", "time-indexed-ssm"])
def test_sampling_gives_the_tokens_of_plain_sampling(name: str):
    model = tiny(name, num_steps=3)
    prompts = [prompt_of(n, seed=n) for n in (5, 3)]
    options = {"num_tokens": 9, "temperature": 0.8, "top_k": 9, "seed": 5}
    plain = generate(model, prompts, **options)
    made = generate_speculative(model, prompts, draft_steps=2, draft_length=3, **options)
    assert made.tokens == plain
    assert 0.0 < made.acceptance_rate < 1.0
    assert 1.0 < made.tokens_per_pass < 4.0


def test_up_to_the_end_of_the_context():
    model, prompt = tiny("standard", context=12), prompt_of(3)
    plain = generate(model, [prompt], num_tokens=9, seed=3)
    made = generate_speculative(
        model, [prompt], draft_steps=1, draft_length=3, num_tokens=9, seed=3
    )
    assert made.tokens == plain


def test_a_perfect_draft_is_always_accepted():
    # Blocks that write nothing: every number of steps gives the same prediction.
    model = tiny("standard")
    silent = jax.tree.map(jnp.zeros_like, model.field)
    model = LanguageModel(**{**vars(model), "field": silent})
    made = generate_speculative(model, [prompt_of(3)], draft_steps=1, draft_length=3, num_tokens=13)
    assert made.acceptance_rate == 1.0
    assert (made.rounds, made.tokens_per_pass) == (3, 4.0)
    assert made.tokens == generate(model, [prompt_of(3)], num_tokens=13)


def test_the_distribution_is_that_of_the_full_model():
    model, prompt, count = tiny("standard"), prompt_of(4), 2048
    options = {"temperature": 1.3, "top_k": 6}
    made = generate_speculative(
        model,
        [prompt] * count,
        draft_steps=1,
        draft_length=1,
        num_tokens=2,
        batch_size=count,
        **options,
    )
    sampler = make_sampler(**options)

    def p_value(counts: np.ndarray, model: LanguageModel, text: list[int]) -> float:
        logits = jnp.asarray(full_logits(model, text)[-1:])
        exact = np.asarray(sampler.probabilities(logits)[0], np.float64)
        kept = exact > 0
        if counts[~kept].sum() > 0:
            return 0.0
        expected = exact[kept] / exact[kept].sum() * counts.sum()
        return float(stats.chisquare(counts[kept], expected).pvalue)

    texts = np.array(made.tokens)
    first = np.bincount(texts[:, 0], minlength=model.vocab_size)
    assert p_value(first, model, prompt) > 1e-3
    # The second token is the first to be drafted and verified: condition on the commonest past.
    common = int(first.argmax())
    second = np.bincount(texts[texts[:, 0] == common, 1], minlength=model.vocab_size)
    assert p_value(second, model, [*prompt, common]) > 1e-3
    # The test can fail: the draft's own distribution is another one.
    assert p_value(second, model.at_depth(1), [*prompt, common]) < 1e-3


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"draft_steps": 0}, "draft steps"),
        ({"draft_steps": 2}, "draft steps"),
        ({"draft_steps": 1, "draft_length": 0}, "draft length"),
    ],
)
def test_refusals(options: dict, reason: str):
    with pytest.raises(UserError, match=reason):
        generate_speculative(tiny("standard"), [[1]], num_tokens=2, **options)


def test_adaptive_is_refused():
    model = tiny("tong", scheme="adaptive")
    with pytest.raises(UserError, match="adaptive"):
        generate_speculative(model, [[1]], num_tokens=2, draft_steps=1)
