"""Threads for devices that one CPU pretends to have.

A device that waits for others in a collective operation keeps a thread of XLA's pool, which has as
many as there are devices or cores, whichever is more. On a busy machine programs of eight devices
were seen to wait until XLA gave up after 40 seconds, in half of the attempts; with more threads in
none. Threads that idle cost next to nothing.
"""

import os
import re

_PER_DEVICE = 4
_ASKED = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def configure_threads() -> None:
    """Four threads for every pretended device, unless it was said how many; before JAX starts."""
    asked = os.environ.get("JAX_NUM_CPU_DEVICES", "")
    flags = [
        *_ASKED.findall(os.environ.get("XLA_FLAGS", "")),
        *([asked] if asked.isdigit() else []),
    ]
    devices = int(flags[-1]) if flags else 1
    if devices > 1 and not {"PJRT_NPROC", "NPROC"} & os.environ.keys():
        os.environ["PJRT_NPROC"] = str(max(_PER_DEVICE * devices, os.cpu_count() or 1))
