"""What a training step holds, measured from the compiled program, and that saving it changes
no number."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny_models import SEQ, config_of, make, random_tokens

from qkvflow.errors import UserError
from qkvflow.lm import abstract, loss, num_pieces, token_losses
from qkvflow.runs.config import make_config
from qkvflow.runs.resume_rules import check_config
from qkvflow.zoo import configure, entry


def temporaries(rows: tuple[int, int], vocab: int, max_logits: int, **changes: Any) -> int:
    """Bytes of temporaries in the program of one loss and gradient."""
    shape = {"d_model": 64, "num_heads": 2, "context": rows[1], "num_steps": 4, **changes}
    model = abstract(configure(entry("standard"), shape), vocab_size=vocab)
    params, static = eqx.partition(model, lambda x: isinstance(x, jax.ShapeDtypeStruct))
    tokens = jax.ShapeDtypeStruct(rows, jnp.int32)

    def objective(params: Any, inputs: Any, targets: Any) -> Any:
        model = dataclasses.replace(eqx.combine(params, static), max_logits=max_logits)
        return loss(model, inputs, targets)

    program = jax.jit(jax.value_and_grad(objective)).lower(params, tokens, tokens).compile()
    analysis = program.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


@pytest.mark.parametrize("changes", [{"tied": False}, {"compute_dtype": "bfloat16"}])
def test_a_loss_in_pieces_is_the_loss(changes: dict[str, Any]):
    model = make(config_of(**changes))
    tokens, targets = random_tokens(2, 3, SEQ), random_tokens(2, 3, SEQ, seed=1)
    # 6 sequences, 17 symbols: pieces of 2 tokens, the last of them half empty.
    most = 2 * 6 * 17
    assert num_pieces(6, SEQ, 17, most) == 5

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def gradient(model: Any) -> Any:
        return loss(model, tokens, targets)

    frugal = dataclasses.replace(model, max_logits=most)
    value, grads = gradient(frugal)
    expected, whole = gradient(model)
    close = 1e-5 if model.compute_dtype == "float32" else 2e-2
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=close, atol=close * float(jnp.abs(b).max()))
    if model.compute_dtype == "float32":
        each = token_losses(frugal, tokens, targets)
        logits = model(tokens)
        plain = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        np.testing.assert_allclose(each, plain, rtol=1e-5, atol=1e-5)


def test_pieces():
    most = 1 << 24
    assert num_pieces(16, 512, 256, most) == 1
    assert num_pieces(1, 1024, most, most) == 1024  # One token at a time is the least there is.
    for batch, seq, vocab in ((8, 1024, 50257), (3, 1000, 32000), (256, 7, 50257)):
        length = -(-seq // num_pieces(batch, seq, vocab, most))
        assert length == 1 or batch * length * vocab <= most


def test_logits_of_the_whole_batch_never_exist():
    rows, vocab = (4, 128), 20_000
    logits = 4 * 128 * vocab * 4
    whole = temporaries(rows, vocab, 1 << 40)
    pieces = temporaries(rows, vocab, 4 * 8 * vocab)
    assert whole > 2 * logits
    assert pieces < 0.7 * logits


def test_rematerialisation_saves_memory():
    none, block, everything = (
        temporaries((32, 32), 50, 1 << 24, d_model=32, num_steps=25, remat=each)
        for each in ("none", "block", "everything")
    )
    states = 25 * 32 * 32 * 32 * 4
    assert none > 5 * block
    # Of 25 states, 5 of the groups and 5 in one are kept; a group has weights and gradients again.
    expected = 15 / 25 * states - 2 * 5 * (12 * 32 * 32) * 4
    assert block - everything > 0.9 * expected


def test_old_values_of_remat_are_read():
    old, new = ({"model": {"remat": each}} for each in (True, "block"))
    assert make_config(old) == make_config(new)
    assert make_config({"model": {"remat": False}}).model.config.remat == "none"
    assert make_config({"model": {"remat": None}}).model.config.remat == "none"
    with pytest.raises(UserError, match=r"remat 'blocks'.*block"):
        make_config({"model": {"remat": "blocks"}})


def test_remat_may_change_on_the_way():
    saved = make_config({}).to_dict()
    saved["model"]["remat"] = False
    assert check_config(saved, make_config({}), step=1, extend=False) == []
    wanted = make_config({"model": {"remat": "everything"}})
    (note,) = check_config(saved, wanted, step=1, extend=False)
    assert "everything" in note
