"""The members of one's own in `examples`: under the same promises as those of the package."""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from own_members import EXAMPLES, no_examples
from test_contract import check
from tiny_models import TINY, config_of, make, random_tokens, randomised

from qkvflow.blocks.base import Rows
from qkvflow.distributed.table import part_of
from qkvflow.fields.parts.gates import ChannelGate
from qkvflow.schemes import make_scheme
from qkvflow.zoo import FIELDS, MIXERS, MODELS, SCHEMES, ModelConfig, configure, entry
from qkvflow.zoo.plugins import load_plugins

pytestmark = pytest.mark.usefixtures("rolled")

MEMBERS = {
    "my-field": (FIELDS, "two-ends"),
    "my-mixer": (MIXERS, "moving-average"),
    "my-scheme": (SCHEMES, "ralston"),
}


@pytest.fixture(scope="module", autouse=True)
def loaded() -> Iterator[None]:
    """In the registries for these tests alone: others run over all members there are."""
    with no_examples():
        load_plugins(EXAMPLES / f"{name.replace('-', '_')}.py" for name in MEMBERS)
        for name, (registry, member) in MEMBERS.items():
            assert registry[member]
            assert MODELS[name]
        yield


def config(name: str, **changes: Any) -> ModelConfig:
    return configure(entry(name), {**TINY, **changes})


@pytest.mark.parametrize("name", MEMBERS)
def test_the_contract(name: str):
    """Finite gradients, a falling loss, no dead parameter, causality."""
    check(config(name))


@pytest.mark.parametrize("field", ["gated", "low-rank"])
@pytest.mark.parametrize("scheme", ["residual", "ralston"])
def test_a_mixer_and_a_scheme_under_other_fields(field: str, scheme: str):
    check(config("my-mixer", field=field, scheme=scheme))


_run = eqx.filter_jit(lambda model, tokens: model(tokens))
_extend = eqx.filter_jit(lambda model, piece, caches, start: model.extend(piece, caches, start))


@pytest.mark.parametrize("name", MEMBERS)
def test_caches_give_what_whole_sequences_give(name: str):
    model = make(config(name))
    tokens = random_tokens(2, 7)
    expected = np.asarray(_run(model, tokens))
    caches = model.init_caches(2, 7)
    found = []
    for piece in np.split(np.asarray(tokens), (3, 4), axis=1):
        start = sum(each.shape[1] for each in found)
        logits, caches = _extend(model, jnp.asarray(piece), caches, jnp.int32(start))
        found.append(logits)
    np.testing.assert_allclose(np.concatenate(found, axis=1), expected, atol=2e-5)


def test_the_moving_average_is_one():
    mixer = randomised(MIXERS["moving-average"](config_of(), 1.0, jax.random.key(0)), 0.1)
    x = np.asarray(jax.random.normal(jax.random.key(1), (6, TINY["d_model"])))
    keep = 1.0 / (1.0 + np.exp(-np.asarray(mixer.rate.rate)))
    h, expected = np.zeros(TINY["d_model"]), []
    for u in np.asarray(mixer.in_proj(jnp.asarray(x))):
        h = keep * h + (1 - keep) * u
        expected.append(h @ np.asarray(mixer.out_proj.weight) + np.asarray(mixer.out_proj.bias))
    np.testing.assert_allclose(mixer(jnp.asarray(x), Rows(1, 6)), expected, atol=1e-5)


def test_roles_place_the_gates_and_the_shards_of_a_mixer_of_ones_own():
    model: Any = make(config("my-mixer", field="gated"))
    gates = {
        jax.tree_util.keystr(path, simple=True, separator=".").split(".")[-3]: gate.axis
        for path, gate in jax.tree_util.tree_leaves_with_path(
            model.field.gates, is_leaf=lambda x: isinstance(x, ChannelGate)
        )
    }
    assert gates == {"in_proj": 0, "out_proj": 1, "up": 0, "down": 0}
    mixer = model.field.at(1.0).branches[0].mixer
    for name in ("in_proj", "out_proj"):
        layer = getattr(mixer, name)
        assert part_of([mixer, layer], [name, "weight"], layer.weight) == name


def test_ralston_has_order_2():
    """Four times the steps, sixteen times nearer to the flow."""
    model = make(config("my-scheme", num_frequencies=1))
    tokens = random_tokens(5)
    flow = np.asarray(_run(model.at_depth(128, make_scheme("rk4")), tokens))
    found = (np.asarray(_run(model.at_depth(n), tokens)) for n in (8, 32))
    coarse, fine = (np.abs(each - flow).max() for each in found)
    assert 10 < coarse / fine < 24


def test_the_field_is_its_blocks_at_the_ends():
    field: Any = make(config("my-field")).field
    for t, end in ((0.0, field.first), (1.0, field.last)):
        assert eqx.tree_equal(field.at(t), end)
