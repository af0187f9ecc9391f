"""At initialisation every model of the zoo is as large as a standard one, at every depth."""

import math
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import qkvflow
from qkvflow.lm import LanguageModel, build_config, loss
from qkvflow.lm.assembly import init_block
from qkvflow.schemes.parts.grid import grid
from qkvflow.zoo import ModelConfig, configure, entry

VOCAB = 256


@eqx.filter_jit
def build(config: ModelConfig, key: Array) -> LanguageModel:
    return build_config(config, vocab_size=VOCAB, key=key)


@eqx.filter_jit
def sizes(model: LanguageModel) -> dict[str, Array]:
    """The root mean square of every weight at every depth of the grid."""
    blocks = model.field.stack(grid(model.num_steps))
    return {
        jax.tree_util.keystr(path): jnp.sqrt(jnp.mean(leaf**2, axis=tuple(range(1, leaf.ndim))))
        for path, leaf in jax.tree_util.tree_leaves_with_path(blocks)
    }


@eqx.filter_jit
def first_loss(model: LanguageModel, key: Array) -> Array:
    tokens = jax.random.randint(key, (4, 129), 0, VOCAB)
    return loss(model, tokens[:, :-1], tokens[:, 1:])


def standard(config: ModelConfig) -> dict[str, float]:
    block = init_block(config, jax.random.key(1))
    return {
        jax.tree_util.keystr(path): float(jnp.sqrt(jnp.mean(leaf**2)))
        for path, leaf in jax.tree_util.tree_leaves_with_path(block)
    }


def check(config: ModelConfig, key: Array) -> None:
    model = build(config, key)
    expected = standard(config)
    extra = len(model.field.at(1.0).branches) % len(config.mixers)
    for place, found in sizes(model).items():
        if place.startswith(tuple(f".branches[{i}]" for i in range(extra))):
            continue  # What is not of a mixer: the coordinates of a step.
        # A block of several layers has the branches of one after those of another.
        name = re.sub(
            r"branches\[(\d+)\]",
            lambda found: f"branches[{(int(found[1]) - extra) % len(config.mixers)}]",
            place,
        )
        assert found.shape == (config.num_steps,)
        # A norm at the end of a loop is not in a block alone; it begins at 1.
        expected.setdefault(name, 1.0)
        if expected[name] == 0.0:
            np.testing.assert_array_equal(found, 0.0, err_msg=name)
        else:
            assert np.all(found > 0.5 * expected[name]), (name, found, expected[name])
            assert np.all(found < 2.0 * expected[name]), (name, found, expected[name])
    assert float(first_loss(model, key)) == pytest.approx(math.log(VOCAB), abs=0.1)


@pytest.mark.parametrize("name", qkvflow.names())
def test_small(name: str, key: Array):
    check(configure(entry(name, "small"), {}), key)


WIDE: dict[str, Any] = {"d_model": 768, "num_steps": 2, "d_time": 4, "context": 128}


@pytest.mark.parametrize("name", ["standard", "tong", "time-indexed-ssm"])
def test_wide(name: str, key: Array):
    check(configure(entry(name, "small"), WIDE), key)


@pytest.mark.parametrize(
    "changes",
    [
        {"gate": "low-rank"},
        {"gate": "both", "gate_activation": "centred"},
        {"field": "hypernet", "time_features": "learned"},
        {"field": "basis", "basis": "chebyshev"},
        {"field": "basis", "basis": "bspline"},
    ],
    ids=lambda changes: "-".join(changes.values()),
)
def test_variants(changes: dict[str, Any], key: Array):
    narrow = {"d_model": 128, "num_heads": 2, "context": 128, "d_time": 16}
    check(configure(entry("time-indexed-mlp"), {**narrow, **changes}), key)
