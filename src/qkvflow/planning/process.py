"""Planning in a process of its own, with as many pretend devices as a mesh asks for.

How many devices there are is settled when JAX starts, so a process that has begun cannot plan for
more of them. The other one compiles for the CPU, reads a job as JSON and answers with the plan.
"""

import dataclasses
import json
import os
import subprocess
import sys
from typing import Any

from qkvflow.distributed.mesh import MeshShape
from qkvflow.errors import UserError
from qkvflow.planning.accelerators import USABLE, UTILISATION, accelerator
from qkvflow.planning.estimate import MAX_DEVICES, check_changes, on_accelerators
from qkvflow.planning.program import CompiledStep, compile_step
from qkvflow.runs.config import RunConfig, make_config
from qkvflow.zoo.plugins import plugin_setup, take_setup

_MOST_DEVICES = 512


def estimate_run(
    config: RunConfig,
    *,
    vocab_size: int,
    mesh: MeshShape | None = None,
    device: str | None = None,
    utilisation: float = UTILISATION,
) -> dict[str, Any]:
    """What a training step needs, compiled on pretend devices; nothing is run or downloaded."""
    mesh = mesh or MeshShape()
    if device is not None:
        accelerator(device)
    if not 0.0 < utilisation <= 1.0:
        raise UserError(f"a utilisation is a share, above 0 and at most 1, not {utilisation}")
    job = {
        "config": config.to_dict(),
        "vocab_size": vocab_size,
        "mesh": dataclasses.asdict(mesh),
        "device": device,
        "utilisation": utilisation,
        "plugins": plugin_setup(),
    }
    if mesh.size > _MOST_DEVICES:
        raise UserError(
            f"a plan is compiled for at most {_MOST_DEVICES} devices, not {mesh.size:.3g}; plan "
            "for fewer: what a device needs is the same when batch and data= grow together"
        )
    count = max(mesh.size, MAX_DEVICES if device else 1)
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    done = subprocess.run(
        [sys.executable, "-m", "qkvflow.planning"],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip()},
    )
    if done.returncode == 2:
        raise UserError(done.stderr.strip().splitlines()[-1])
    if done.returncode != 0:
        raise RuntimeError(f"planning failed: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout)


def make_estimate(job: dict[str, Any]) -> dict[str, Any]:
    """The plan, in a process that has the devices."""
    take_setup(job["plugins"])
    config, mesh = make_config(job["config"]), MeshShape(**job["mesh"])
    vocab_size, device = job["vocab_size"], job["device"]

    def compile(config: RunConfig, mesh: MeshShape) -> CompiledStep:
        return compile_step(config, vocab_size=vocab_size, mesh=mesh)

    program = compile(config, mesh)
    rows = on_accelerators(program, config, mesh, job["utilisation"])
    fits = None if device is None else next(r["fits"] for r in rows if r["device"] == device)
    changes = []
    if device is not None and not fits:
        changes = check_changes(program, config, mesh, device, compile)
    products = program.work.products * mesh.size
    return {
        "model": config.model.name,
        "mesh": str(mesh),
        "devices": mesh.size,
        "vocab_size": vocab_size,
        "batch_size": config.train.batch_size,
        "context": config.context,
        "steps": config.train.steps,
        "compute_dtype": config.model.config.compute_dtype,
        "parameters": program.parameters,
        "weights_in_effect": program.in_effect,
        "memory_per_device": {
            **dataclasses.asdict(program.memory),
            "total": program.memory.total,
        },
        "flops_per_step": {
            "compiled": products,
            "analytic": program.analytic_flops,
        },
        "exchanged_bytes_per_device": program.work.exchanged,
        "utilisation": job["utilisation"],
        "usable_memory": USABLE,
        "device": device,
        "fits": fits,
        "changes": changes,
        "accelerators": rows,
    }
