"""Threads for devices that one CPU pretends to have.

A device that waits for others in a collective operation keeps a thread of XLA's pool, which has as
many as there are devices or cores, whichever is more. On a busy machine programs of eight devices
were seen to wait until XLA gave up after 40 seconds, in half of the attempts; with more threads in
none. Threads that idle cost next to nothing.
"""

import os
import re

from qkvflow.errors import UserError

_PER_DEVICE = 4
_ASKED = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def configure_threads() -> None:
    """Four threads for every pretended device, unless it was said how many; before JAX starts."""
    asked = _ASKED.findall(os.environ.get("XLA_FLAGS", ""))
    if number := os.environ.get("JAX_NUM_CPU_DEVICES"):
        if not re.fullmatch(r"-?\d+", number):
            raise UserError(f"JAX_NUM_CPU_DEVICES must be a whole number, not '{number}'")
        asked.append(number)
    devices = int(asked[-1]) if asked else 1
    if devices > 1 and not {"PJRT_NPROC", "NPROC"} & os.environ.keys():
        os.environ["PJRT_NPROC"] = str(max(_PER_DEVICE * devices, os.cpu_count() or 1))
