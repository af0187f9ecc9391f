"""Meshes as text, and the table from what an array does to the axes it is divided along."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from qkvflow.distributed import (
    MeshShape,
    check_batch,
    make_layout,
    make_mesh,
    parse_mesh,
    shardings,
)
from qkvflow.distributed.mesh import AXES
from qkvflow.distributed.table import TABLE, spec
from qkvflow.errors import UserError
from qkvflow.lm.assembly import abstract_model, init_block
from qkvflow.runs.sections import OptimConfig
from qkvflow.schemes.parts.grid import grid
from qkvflow.training.optim import optimiser
from qkvflow.training.schedule import make_schedule
from qkvflow.training.step import Hyper, init_state
from qkvflow.zoo import OPTIMISERS, configure, entry, names

CUBE = AbstractMesh((2, 2, 2), AXES)


def test_any_of_the_axes():
    assert parse_mesh("data=4,fsdp=2,tensor=2") == MeshShape(4, 2, 2)
    assert parse_mesh("tensor=2") == MeshShape(1, 1, 2)
    assert (MeshShape(4, 2, 2).size, MeshShape(4, 2, 2).rows) == (16, 8)
    for text in ("data=4,fsdp=2", "fsdp=8", "data=1"):
        assert str(parse_mesh(text)) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fdsp=2", "unknown mesh axis 'fdsp'; did you mean fsdp?"),
        ("data=2,data=2", "data is given twice"),
        ("data=0", "must have a whole size, as data=2, not '0'"),
        ("data", "not ''"),
        ("data=two", "not 'two'"),
    ],
)
def test_other_meshes_are_refused(text: str, said: str):
    with pytest.raises(UserError) as caught:
        parse_mesh(text)
    assert said in str(caught.value)


def test_what_does_not_divide_is_refused():
    with pytest.raises(
        UserError, match=r"needs 64 devices and there are \d+.* set JAX_NUM_CPU_DEVICES=64$"
    ):
        make_layout("data=64")
    check_batch(MeshShape(2, 2, 3), 8)
    with pytest.raises(UserError, match=r"a batch of 6 cannot .* give a batch size divisible by 4"):
        check_batch(MeshShape(2, 2), 6)
    with pytest.raises(UserError, match=r"in 2 parts .* divisible by 8"):
        check_batch(MeshShape(2, 2), 4, grad_accum=2)


def test_axes_stay_away_from_what_they_do_not_divide():
    assert spec("matrix", (6, 16, 48), CUBE) == PartitionSpec(None, "fsdp", "tensor")
    # To the other side, if that is divided by both.
    assert spec("matrix", (6, 15, 48), CUBE) == PartitionSpec(None, None, ("fsdp", "tensor"))
    assert spec("matrix", (16, 7), CUBE) == PartitionSpec(("fsdp", "tensor"))
    assert spec("matrix", (6, 7), CUBE) == PartitionSpec("fsdp")
    assert spec("kernel", (4, 7), CUBE) == PartitionSpec()
    assert spec("bias", (16,), CUBE) == spec("other", (), CUBE) == PartitionSpec()
    alone = AbstractMesh((8, 1, 1), AXES)
    assert all(spec(part, (8, 8), alone) == PartitionSpec() for part in TABLE)


def by_path(tree: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_flatten_with_path(tree)[0]}


def config_of(name: str) -> Any:
    return configure(entry(name), {})


@pytest.mark.parametrize("name", names())
def test_a_device_has_its_share_of_every_model(name: str):
    """Of a cube of devices, each has a quarter of the matrices: `data` holds copies. The smallest
    models have a fifth of their parameters in vectors and time embeddings, which stay whole."""
    params, _ = abstract_model(config_of(name), 256)
    divided = shardings(params, CUBE)
    whole = sum(leaf.size for leaf in jax.tree.leaves(params))
    own = sum(
        int(np.prod(sharding.shard_shape(leaf.shape)))
        for leaf, sharding in zip(jax.tree.leaves(params), jax.tree.leaves(divided), strict=True)
    )
    assert whole / 4 <= own < 0.45 * whole


def test_a_generator_is_divided_as_what_it_generates():
    model = eqx.combine(*abstract_model(config_of("tong"), 256))
    stack = eqx.filter_eval_shape(lambda field: field.stack(grid(6)), model.field)
    made = by_path(shardings(stack, CUBE))
    generators = by_path(shardings(model.field, CUBE))
    matrices = [path for path in made if path.endswith(".weight")]
    assert len(matrices) == 4
    for path in matrices:
        maps = generators[f".generators{path.removesuffix('.weight')}.maps.weight"]
        assert made[path].spec == maps.spec
        assert set(maps.spec) == {None, "fsdp", "tensor"}
        # Reading and writing matrices meet on `tensor`.
        assert maps.spec[1] == ("tensor" if ".out" in path or ".down" in path else "fsdp")


WRITES = {
    "attention": {"out"},
    "mlp": {"down"},
    "swiglu": {"down"},
    "ssm": {"c"},
    "selective-ssm": {"out_proj"},
}
"""Of every mixer, the matrices that write to the residual stream: their inputs are on `tensor`."""


@pytest.mark.parametrize("mixer", WRITES)
def test_matrices_are_divided_by_what_they_do(mixer: str):
    block = eqx.filter_eval_shape(
        lambda key: init_block(configure(entry("standard"), {"block": mixer}), key),
        jax.random.key(0),
    )
    made = by_path(shardings(block, CUBE))
    shapes = by_path(block)
    writing = set()
    for path, sharding in made.items():
        if shapes[path].ndim < 2 or ".kernel" in path:
            continue
        assert set(sharding.spec) == {"fsdp", "tensor"}, path
        if sharding.spec[0] == "tensor":
            writing.add(path.removesuffix(".weight").rpartition(".")[2])
    assert writing == WRITES[mixer]


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_keeps_its_state_beside_the_parameters(name: str):
    optim = OptimConfig(name=name)
    hyper = Hyper(*(jax.numpy.asarray(each) for each in (0, 1e-3, 2, 10)))
    rule = optimiser(optim, partial(make_schedule(optim), hyper))
    params = abstract_model(config_of("standard"), 256)[0]
    state = jax.eval_shape(lambda params: init_state(params, rule), params)
    divided = by_path(shardings(state, CUBE))
    shapes = by_path(state)
    of_params = {path.removeprefix(".params"): each.spec for path, each in divided.items()}
    found = 0
    for path, each in divided.items():
        for mine, wanted in of_params.items():
            if path.startswith(".opt_state") and mine and path.endswith(mine):
                assert each.spec == wanted, path
                found += shapes[path].size
    assert found >= sum(leaf.size for leaf in jax.tree.leaves(params))


def test_a_mesh_of_one_device_changes_nothing():
    layout = make_layout("data=1")
    model = eqx.combine(*abstract_model(config_of("standard"), 256))
    assert layout.shard_model(model) is model
    assert make_mesh(MeshShape()).size == 1
    with pytest.raises(UserError, match="tensor=3 does not divide this model's 4 heads"):
        type(layout)(MeshShape(tensor=3), layout.mesh).check(model, 4, num_heads=4)
