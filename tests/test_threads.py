"""Pretended devices have threads to wait on."""

import os
import subprocess
import sys

import pytest

from qkvflow.cli import main

COUNT = """
import glob
from qkvflow import threads

threads.configure_threads()
import jax

assert jax.device_count() == 3
names = [open(name).read().strip() for name in glob.glob("/proc/self/task/*/comm")]
print(sum(name.endswith("XLAEigen") for name in names))
"""


FLAG = {"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}
SETTING = {"JAX_NUM_CPU_DEVICES": "3"}


def pool(**settings: str) -> int:
    environment = {k: v for k, v in os.environ.items() if k not in ("PJRT_NPROC", "NPROC")}
    done = subprocess.run(
        [sys.executable, "-c", COUNT],
        capture_output=True,
        text=True,
        env={**environment, **settings},
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_four_threads_for_every_pretended_device_or_what_was_asked():
    assert pool(**FLAG) >= 12
    assert pool(**SETTING) >= 12
    assert pool(**FLAG, PJRT_NPROC="5") == 5


def test_a_number_of_devices_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "two")
    assert main(["models"]) == 2
    refusal = "qkvflow: JAX_NUM_CPU_DEVICES must be a whole number, not 'two'\n"
    assert capsys.readouterr().err == refusal
