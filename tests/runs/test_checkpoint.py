"""Checkpoints: what goes in comes out again, scalars included, part by part."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.distributed import one_device
from qkvflow.errors import UserError
from qkvflow.runs.checkpoint import Checkpoints
from qkvflow.runs.sections import CheckpointConfig

MODEL = {"scale": jnp.float32(0.75), "matrix": jnp.arange(6.0).reshape(2, 3)}
TRAINING = {"count": jnp.int32(7), "mean": {"scale": jnp.float32(0.5)}}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(keep=1))
    for step in (1, 2):
        checkpoints.save(MODEL, TRAINING, {"progress": {"step": step}}, step, best=1)
    checkpoints.wait()
    checkpoints.close()
    return tmp_path


def test_arrays_and_scalars_come_back(saved: Path):
    """A parameter without axes, as a plugin's field may have, is an array like the others."""
    checkpoints = Checkpoints(saved, read_only=True)
    like = one_device().like
    model, training = checkpoints.restore(2, like(MODEL), like(TRAINING))
    for given, found in zip(
        jax.tree.leaves((MODEL, TRAINING)), jax.tree.leaves((model, training)), strict=True
    ):
        np.testing.assert_array_equal(given, found)
    assert checkpoints.restore_host(2)["progress"] == {"step": 2}
    checkpoints.close()


def test_the_last_and_the_best_are_kept_and_others_forgotten(saved: Path):
    checkpoints = Checkpoints(saved, CheckpointConfig(keep=1))
    assert checkpoints.steps() == [1, 2]
    checkpoints.forget(keep=1)
    assert checkpoints.steps() == [1]
    checkpoints.close()


def test_another_shape_is_another_model(saved: Path):
    checkpoints = Checkpoints(saved, read_only=True)
    other = one_device().like({**MODEL, "matrix": jnp.zeros((2, 4))})
    with pytest.raises(UserError, match=r"of another model: \['matrix'\] is \(2, 3\)"):
        checkpoints.restore_model(2, other)
    checkpoints.close()
