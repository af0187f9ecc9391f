"""At initialisation every model of the zoo is as large as a standard one, at every depth."""

import math
import re
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import qkvflow
from qkvflow.blocks import Block
from qkvflow.lm import LanguageModel, build_config, loss
from qkvflow.lm.assembly import init_block
from qkvflow.schemes.parts.grid import grid
from qkvflow.zoo import ModelConfig, configure, entry

VOCAB = 256
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (4, 129))

pytestmark = pytest.mark.usefixtures("rolled")


class Initial(NamedTuple):
    """Of a model before its first step: root mean squares of its weights, and its loss."""

    weights: dict[str, Array]
    """Of every weight at every depth of the grid."""
    expected: dict[str, Array]
    """Of the weights of one standard block."""
    branches: int
    loss: Array


def rms(blocks: Any, *, first_axis: int) -> dict[str, Array]:
    return {
        jax.tree_util.keystr(path): jnp.sqrt(
            jnp.mean(leaf**2, axis=tuple(range(first_axis, leaf.ndim)))
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(blocks)
    }


@eqx.filter_jit
def initial(model: LanguageModel, block: Block, tokens: Array) -> Initial:
    blocks = model.field.stack(grid(model.num_steps))
    return Initial(
        rms(blocks, first_axis=1),
        rms(block, first_axis=0),
        len(blocks.branches),
        loss(model, tokens[:, :-1], tokens[:, 1:]),
    )


def check(config: ModelConfig, key: Array) -> None:
    # Made outside of the program: drawing every weight is most of it, and models share shapes.
    model = build_config(config, vocab_size=VOCAB, key=key)
    made = initial(model, init_block(config, jax.random.key(1)), jnp.asarray(TOKENS))
    expected = {name: float(size) for name, size in made.expected.items()}
    extra = made.branches % len(config.mixers)
    for place, found in made.weights.items():
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
    assert float(made.loss) == pytest.approx(math.log(VOCAB), abs=0.1)


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
