"""Fifty steps of tiny models on a mesh, in a process that pretends to have its devices.

    python on_devices.py MESH

prints, as JSON, the losses of every model, what the compiled program of each holds, and what a
solver did.
"""

import json
import re
import sys
from typing import Any

import jax
import numpy as np

from qkvflow import threads
from qkvflow.data.encode import TokenArray
from qkvflow.distributed import make_layout
from qkvflow.evaluation.losses import Evaluator
from qkvflow.runs.config import make_config
from qkvflow.training import make_program

MODELS = ("standard", "tong", "time-indexed-mlp", "time-indexed-ssm", "mamba")
SOLVERS: dict[str, dict[str, Any]] = {
    "adaptive": {"name": "universal", "scheme": "adaptive"},
    "deq": {"num_steps": 1},
}
# On two devices alone: they take long to compile.
FEW_DEVICES = {"value-residual": {"name": "standard", "value_residual": True}, **SOLVERS}
STEPS, BATCH, VOCAB = 50, 8, 18
SHAPE: dict[str, Any] = {
    "d_model": 16,
    "num_steps": 3,
    "num_heads": 4,
    "context": 16,
    "d_state": 8,
    "ssm_head_dim": 8,
    "d_time": 6,
    "num_frequencies": 4,
}


def run(name: str, mesh: str) -> dict[str, Any]:
    # One of them in parts, which have to be divided over devices as well.
    parts = 2 if name == "time-indexed-mlp" else 1
    config = make_config(
        {
            "model": {"name": name, **SHAPE, **FEW_DEVICES.get(name, {})},
            "optim": {"warmup": 10},
            "train": {"steps": STEPS, "batch_size": BATCH, "grad_accum": parts},
        }
    )
    layout = make_layout(mesh)
    program = make_program(config, VOCAB, layout)
    layout.check(program.params, BATCH, num_heads=SHAPE["num_heads"])
    state = program.init()
    tokens = np.random.default_rng(1).integers(0, VOCAB, 2000).astype(np.uint8)
    arguments = jax.tree.map(layout.replicate, (program.hyper(), tokens, np.int32(STEPS)))
    jitted = jax.jit(
        program.multi_step(STEPS, on_device=True),
        donate_argnums=0,
        out_shardings=(layout.shardings(state), layout.replicated),
    )
    compiled = jitted.lower(state, *arguments).compile()
    memory, text = compiled.memory_analysis(), compiled.as_text()
    assert memory is not None
    assert text is not None
    after, metrics = compiled(state, *arguments)
    return {
        "losses": np.asarray(metrics.loss, np.float64).tolist(),
        "argument_bytes": memory.argument_size_in_bytes,
        "state_bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(after)),
        "own_bytes": sum(leaf.addressable_data(0).nbytes for leaf in jax.tree.leaves(after)),
        # Every array that the program of one device ever holds.
        "shapes": sorted({*re.findall(r"f32\[([\d,]+)\]", text)}),
        "devices": jax.device_count(),
        "solved": solved(program, after, tokens, metrics) if name in SOLVERS else None,
    }


def solved(program: Any, state: Any, tokens: np.ndarray, metrics: Any) -> dict[str, Any]:
    """The work of a solver in training and in an evaluation."""
    split = TokenArray(tokens, 1, len(tokens), len(tokens), "tokens")
    evaluator = Evaluator(
        program.static, split, context=16, batch_size=BATCH, layout=program.layout
    )
    found = evaluator(state.params)
    assert found.solved is not None
    return {
        "evaluations": np.asarray(metrics.work.evaluations, np.float64).tolist(),
        "arrived": np.asarray(metrics.work.arrived).tolist(),
        "nats": found.nats,
        "evaluation": found.solved._asdict(),
    }


if __name__ == "__main__":
    threads.configure_threads()
    names = MODELS if jax.device_count() > 2 else (*MODELS, *FEW_DEVICES)
    print(json.dumps({name: run(name, sys.argv[1]) for name in names}))
