"""From a compiled step to what it takes on accelerators: whether it fits, time, cost, and what to
change.

    time of a step = products / (peak x utilisation) + exchanged / link

on every device, with nothing overlapped. A change is offered only after it was compiled too.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from qkvflow.distributed.mesh import MeshShape
from qkvflow.planning.accelerators import ACCELERATORS, USABLE, Accelerator, accelerator
from qkvflow.planning.program import CompiledStep, Memory
from qkvflow.runs.config import RunConfig, make_config

MAX_DEVICES = 64
"""Largest mesh that is offered."""

Compile = Callable[[RunConfig, MeshShape], CompiledStep]


def room(device: Accelerator) -> float:
    return USABLE * device.memory


def on_accelerators(
    program: CompiledStep, config: RunConfig, mesh: MeshShape, utilisation: float
) -> list[dict[str, Any]]:
    """A row for every known accelerator."""
    rows = []
    for name, device in ACCELERATORS.items():
        peak = getattr(device, config.model.config.compute_dtype)
        computing = program.work.products / (peak * utilisation)
        exchanging = program.work.exchanged / device.link
        hours = config.train.steps * (computing + exchanging) / 3600
        rows.append(
            {
                "device": name,
                "memory_bytes": int(device.memory),
                "fits": program.memory.total <= room(device),
                "step_seconds": computing + exchanging,
                "exchanging_seconds": exchanging,
                "run_hours": hours,
                "price_per_hour": device.price,
                "cost": hours * mesh.size * device.price,
            }
        )
    return rows


def check_changes(
    program: CompiledStep, config: RunConfig, mesh: MeshShape, device: str, compile: Compile
) -> list[dict[str, Any]]:
    """Changes that save memory, each compiled, with what it comes to and whether it fits.

    One change at a time, the cheapest in time first; two together where one is not enough. How
    far to go is predicted from what divides: parts of a batch divide the activations, devices
    everything.
    """
    limit = room(accelerator(device))
    rows: list[dict[str, Any]] = []

    def attempt(options: str, config: RunConfig, mesh: MeshShape) -> Memory:
        memory = compile(config, mesh).memory
        fits = memory.total <= limit
        rows.append({"options": options, "bytes": memory.total, "fits": fits})
        return memory

    def divide(memory: Memory, config: RunConfig, with_it: str) -> None:
        if parts := _parts(memory, limit, config, mesh):
            changed = _with(config, "train", grad_accum=parts)
            attempt(f"{with_it}--train.grad_accum {parts}", changed, mesh)
        if more := _devices(memory.total / limit, config, mesh):
            attempt(f"{with_it}--mesh {more}", config, more)

    memory, with_it = program.memory, ""
    if config.model.config.remat == "none":
        frugal, option = _with(config, "model", remat="block"), "--model.remat block"
        kept = attempt(option, frugal, mesh)
        if kept.total > limit:
            # Then it is needed whatever else is done.
            memory, config, with_it = kept, frugal, f"{option} "
    if config.model.config.remat == "block":
        attempt("--model.remat everything", _with(config, "model", remat="everything"), mesh)
    divide(memory, config, with_it)
    return rows


def _with(config: RunConfig, section: str, **changes: Any) -> RunConfig:
    return make_config(config.to_dict(), {section: changes})


def _parts(memory: Memory, limit: float, config: RunConfig, mesh: MeshShape) -> int | None:
    """The fewest parts of a batch, dividing it evenly, that should fit; or the most there are."""
    train = config.train
    most = train.batch_size // mesh.rows
    fixed = memory.total - memory.activations
    for parts in range(train.grad_accum + 1, most + 1):
        enough = fixed + memory.activations * train.grad_accum / parts <= limit
        if most % parts == 0 and (enough or parts == most):
            return parts
    return None


def _devices(least: float, config: RunConfig, mesh: MeshShape) -> MeshShape | None:
    """The mesh with enough times as many devices on `fsdp`, a power of two."""
    times = 2 ** max(1, math.ceil(math.log2(max(least, 1.0))))
    while times > 1:
        more = dataclasses.replace(mesh, fsdp=times * mesh.fsdp)
        rows = config.train.batch_size // config.train.grad_accum
        width = config.model.config.d_model
        if more.size <= MAX_DEVICES and rows % more.rows == 0 and width % more.fsdp == 0:
            return more
        times //= 2
    return None
