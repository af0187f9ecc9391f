"""Meshes of devices: `--mesh data=4,fsdp=2,tensor=2`.

`data`    copies of the model, each with its part of the batch
`fsdp`    parts of the batch as well, and parameters and optimiser state are divided along it
`tensor`  wide matrices, heads and the vocabulary are divided along it; the batch is not

A mesh always has all three axes; one that is not named has size 1.
"""

import dataclasses
from typing import Any

import jax
from jax.sharding import AxisType, Mesh

from qkvflow.errors import UserError, unknown

AXES = ("data", "fsdp", "tensor")
ROWS = ("data", "fsdp")
"""The axes a batch is divided along."""


@dataclasses.dataclass(frozen=True)
class MeshShape:
    """How many devices stand along each axis."""

    data: int = 1
    fsdp: int = 1
    tensor: int = 1

    @property
    def size(self) -> int:
        return self.data * self.fsdp * self.tensor

    @property
    def rows(self) -> int:
        """Parts a batch is divided into."""
        return self.data * self.fsdp

    def __str__(self) -> str:
        named = [f"{axis}={getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1]
        return ",".join(named) or "data=1"


def parse_mesh(text: str) -> MeshShape:
    """`data=4,fsdp=2`, with any of the axes."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, size = (each.strip() for each in part.partition("="))
        if axis not in AXES:
            raise unknown("mesh axis", axis, AXES)
        if axis in sizes:
            raise UserError(f"mesh axis {axis} is given twice in '{text}'; give it once")
        whole = size.isascii() and size.isdecimal() and len(size) < 10
        if not (whole and int(size) > 0):
            raise UserError(f"mesh axis {axis} must have a whole size, as {axis}=2, not '{size}'")
        sizes[axis] = int(size)
    return MeshShape(**sizes)


def mesh_shape(text: str | None) -> MeshShape:
    """What was asked for, or all devices on `data`."""
    return MeshShape(data=jax.device_count()) if text is None else parse_mesh(text)


def make_mesh(shape: MeshShape, devices: Any = None) -> Mesh:
    """The mesh on the first devices there are (on all of them, where there are several processes).

    Axes are left to the compiler to reason about (`Auto`): solvers from other libraries do not
    say how each of their arrays is divided.
    """
    devices = jax.devices() if devices is None else devices
    if shape.size > len(devices):
        more = f", or set JAX_NUM_CPU_DEVICES={shape.size}"
        raise UserError(
            f"--mesh {shape} needs {shape.size} devices and there are {len(devices)}; give a mesh "
            f"whose sizes multiply to at most {len(devices)}"
            + (more if devices[0].platform == "cpu" else "")
        )
    if jax.process_count() > 1 and shape.size != len(devices):
        raise UserError(
            f"--mesh {shape} has {shape.size} devices and the {jax.process_count()} processes have "
            f"{len(devices)}; give a mesh of them all"
        )
    return jax.make_mesh(
        tuple(getattr(shape, axis) for axis in AXES),
        AXES,
        axis_types=(AxisType.Auto,) * len(AXES),
        devices=devices[: shape.size],
    )


def check_batch(shape: MeshShape, batch_size: int, grad_accum: int = 1) -> None:
    """Refuse a batch that cannot be divided into equal parts."""
    if (batch_size // grad_accum) % shape.rows == 0:
        return
    part = f" in {grad_accum} parts" if grad_accum > 1 else ""
    raise UserError(
        f"a batch of {batch_size}{part} cannot be divided over {shape.rows} devices (mesh "
        f"{shape}); give a batch size divisible by {shape.rows * grad_accum}, or another --mesh"
    )
