"""Sessions: forward in pieces, and back."""

import jax.numpy as jnp
import numpy as np
import pytest
from sharp_models import full_logits, prompt_of, tiny

from qkvflow.errors import UserError
from qkvflow.generation import Session, generate


@pytest.mark.parametrize("name", ["standard", "time-indexed-selective-ssm"])
def test_back_and_forth(name: str):
    model = tiny(name)
    text, other = prompt_of(10), prompt_of(10, seed=1)
    session = Session(model, 1, 16)
    session.feed(jnp.array([text[:4]]))
    session.snapshot()
    session.feed(jnp.array([text[4:]]))
    assert session.position == 10

    def matches(expected: list[int]) -> None:
        assert session.tokens[0].tolist() == expected
        assert session.logits is not None
        np.testing.assert_allclose(session.logits[0], full_logits(model, expected)[-1], atol=1e-4)

    matches(text)
    # With a snapshot before it, right at one, and with none before it.
    for place in (8, 4, 3):
        session.at(place)
        matches(text[:place])
        session.feed(jnp.array([other[place:]]))
        matches(text[:place] + other[place:])
        session.at(place).feed(jnp.array([text[place:]]))
        matches(text)


def test_a_session_draws_what_generate_draws():
    model, prompt = tiny("standard"), prompt_of(5)
    expected = generate(model, [prompt, prompt], num_tokens=3, seed=7)
    session = Session(model, 2, 16, seed=7)
    session.feed(jnp.array([prompt, prompt]))
    for column in range(3):
        drawn = session.sample()
        assert drawn.tolist() == [text[column] for text in expected]
        assert drawn.tolist() == session.sample().tolist()
        session.feed(drawn[:, None])


def test_scores_are_those_of_every_token():
    model, text = tiny("standard"), prompt_of(4)
    scores = Session(model, 1, 16).score(jnp.array([text]))
    np.testing.assert_allclose(scores[0], full_logits(model, text), atol=1e-4)


def test_refusals():
    model = tiny("standard")
    with pytest.raises(UserError, match="learned positions"):
        Session(model, 1, 33)
    session = Session(model, 1, 4)
    with pytest.raises(UserError, match="nothing to draw"):
        session.sample()
    with pytest.raises(UserError, match="do not fit"):
        session.feed(jnp.array([[1, 2, 3, 4, 5]]))
    with pytest.raises(UserError, match="vocabulary"):
        session.feed(jnp.array([[99]]))
    with pytest.raises(UserError, match="sequences"):
        session.feed(jnp.array([[1], [2]]))
    with pytest.raises(UserError, match="go back"):
        session.at(1)
    with pytest.raises(UserError, match="adaptive"):
        Session(tiny("tong", scheme="adaptive"), 1, 4)
