"""Known accelerators, as data.

Memory and peak speeds are the makers' published figures (dense matrix products). `float32` is the
speed of products of float32 arrays as JAX runs them by default: in TF32 on these GPUs, in bfloat16
passes on TPUs. `link` is what one device can send to its neighbours. Prices are assumptions: what
one device cost by the hour, on demand, at large clouds in 2025; yours will differ.
"""

from typing import NamedTuple

from qkvflow.errors import unknown

USABLE = 0.9
"""Share of a device's memory that a program may plan with; the rest is the runtime's."""
UTILISATION = 0.4
"""Share of the peak speed that training is assumed to reach."""


class Accelerator(NamedTuple):
    memory: float
    """Bytes."""
    bfloat16: float
    """Operations per second."""
    float32: float
    link: float
    """Bytes per second and device, in one direction."""
    price: float
    """Dollars per hour: an assumption."""


ACCELERATORS: dict[str, Accelerator] = {
    "l4": Accelerator(24e9, 121e12, 60e12, 32e9, 0.7),
    "rtx-4090": Accelerator(24e9, 165e12, 83e12, 32e9, 0.5),
    "a100-40g": Accelerator(40e9, 312e12, 156e12, 300e9, 1.5),
    "a100-80g": Accelerator(80e9, 312e12, 156e12, 300e9, 2.0),
    "h100-80g": Accelerator(80e9, 989e12, 495e12, 450e9, 3.0),
    "tpu-v4": Accelerator(32e9, 275e12, 275e12, 300e9, 3.2),
    "tpu-v5e": Accelerator(16e9, 197e12, 197e12, 200e9, 1.2),
    "tpu-v5p": Accelerator(95e9, 459e12, 459e12, 600e9, 4.2),
}


def accelerator(name: str) -> Accelerator:
    if name not in ACCELERATORS:
        raise unknown("device", name, ACCELERATORS)
    return ACCELERATORS[name]
