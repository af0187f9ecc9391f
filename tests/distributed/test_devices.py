"""The same losses on 1, 2, 4 and 8 devices, and what each of them holds."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from on_devices import FEW_DEVICES, MODELS, SHAPE, SOLVERS
from processes import python

pytestmark = pytest.mark.slow

MESHES = {1: "data=1", 2: "fsdp=2", 4: "data=2,tensor=2", 8: "data=2,fsdp=2,tensor=2"}


@cache
def results(devices: int) -> dict[str, Any]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    script = Path(__file__).with_name("on_devices.py")
    done = python(script, MESHES[devices], XLA_FLAGS=flags.strip())
    assert done.returncode == 0, done.stderr[-2000:]
    # A constraint that the compiler can only meet by copying everything everywhere.
    assert "rematerialization" not in done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("name", "devices"),
    [(name, devices) for name in MODELS for devices in (2, 4, 8)]
    + [(name, 2) for name in FEW_DEVICES],
)
def test_the_same_losses_on_any_number_of_devices(name: str, devices: int):
    alone, together = results(1)[name], results(devices)[name]
    assert (alone["devices"], together["devices"]) == (1, devices)
    assert len(alone["losses"]) == 50
    np.testing.assert_allclose(together["losses"], alone["losses"], rtol=1e-5)
    # It did learn something in those steps: the losses are not equal for want of change.
    assert alone["losses"][-1] < alone["losses"][0] - 0.01


@pytest.mark.parametrize("name", SOLVERS)
def test_a_solver_tells_its_work_on_two_devices(name: str):
    alone, together = (results(devices)[name]["solved"] for devices in (1, 2))
    assert all(together["arrived"])
    np.testing.assert_allclose(together["evaluations"], alone["evaluations"], rtol=0.1)
    assert together["nats"] == pytest.approx(alone["nats"], rel=1e-5)
    of_one, of_two = alone["evaluation"], together["evaluation"]
    assert (of_two["batches"], of_two["missed"]) == (of_one["batches"], 0)
    assert of_two["evaluations"] == pytest.approx(of_one["evaluations"], rel=0.1)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_and_optimiser_state_are_divided(name: str):
    alone, together = results(1)[name], results(8)[name]
    assert alone["own_bytes"] == alone["state_bytes"] == together["state_bytes"]
    assert together["own_bytes"] < 0.55 * together["state_bytes"]
    # The compiler agrees: that is what the program takes, besides the tokens.
    for each in (alone, together):
        assert each["own_bytes"] <= each["argument_bytes"] < each["own_bytes"] + 4096


def test_no_device_holds_a_whole_generated_stack():
    """The weights of all depths are there whole in the program of one device, and in quarters
    in that of eight; whole over `fsdp` they are for one depth at a time."""
    depths, d_model = SHAPE["num_steps"], SHAPE["d_model"]
    hidden = 4 * d_model
    wholes = {
        f"{lead},{a},{b}"
        for lead in (depths, SHAPE["d_time"])
        for a, b in ((d_model, 3 * d_model), (d_model, hidden), (hidden, d_model))
    }
    quarters = {
        f"{lead},{a // 2},{b // 2}"
        for lead in (depths, SHAPE["d_time"])
        for a, b in ((d_model, 3 * d_model), (d_model, hidden), (hidden, d_model))
    }
    assert wholes <= {*results(1)["tong"]["shapes"]}
    found = {*results(8)["tong"]["shapes"]}
    assert not wholes & found
    assert quarters <= found
    assert f"{d_model},{hidden // 2}" in found
