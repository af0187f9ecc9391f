"""What a run leaves behind: `record.json`, field by field as in docs/records.md."""

import importlib.metadata
import os
import platform
import resource
import sys
from datetime import UTC, datetime
from typing import Any

import jax

from qkvflow.data import EncodedCorpus
from qkvflow.lm import LanguageModel, count_flops, count_parameters, weights_in_effect
from qkvflow.runs.config import RunConfig

SCHEMA = 1
_LIBRARIES = ("qkvflow", "jax", "jaxlib", "equinox", "optax", "orbax-checkpoint", "numpy")


def describe_model(config: RunConfig, model: LanguageModel, flops_per_step: int) -> dict[str, Any]:
    """The sections of a record that follow from the model alone."""
    choice, shape = config.model, config.model.config
    flops = count_flops(model)
    return {
        "model": {
            "name": choice.name,
            "field": shape.field,
            "block": shape.block,
            "scheme": shape.scheme,
            "config": shape.to_dict(),
        },
        "params": {**count_parameters(model)._asdict(), "in_effect": weights_in_effect(model)},
        "flops": {
            "per_token": {"forward": flops.forward, "training": flops.training},
            "per_step": flops_per_step,
        },
    }


def describe_training(config: RunConfig) -> dict[str, Any]:
    return {
        "batch_size": config.train.batch_size,
        "context": config.context,
        "optim": config.to_dict()["optim"],
    }


def make_record(
    config: RunConfig,
    model: LanguageModel,
    encoded: EncodedCorpus,
    *,
    flops_per_step: int,
    error: str | None,
    steps: int,
    skipped: int,
    seconds: float,
    compile_seconds: float,
    program_bytes: int | None,
    train_loss: float | None,
    validation: dict[str, Any] | None,
    test: dict[str, Any] | None,
    selected_step: int | None,
    started: str,
) -> dict[str, Any]:
    """The record of one run. `model` may be of shapes alone."""
    described = describe_model(config, model, flops_per_step)
    tokens = steps * config.tokens_per_step
    return {
        "schema": SCHEMA,
        "status": "finished" if error is None else "failed",
        "error": error,
        "label": label_of(config),
        **described,
        "seed": config.train.seed,
        "data": encoded.describe(),
        "budget": {
            "steps": steps,
            "tokens": tokens,
            "flops": steps * described["flops"]["per_step"],
            "seconds": seconds,
        },
        "training": describe_training(config),
        "losses": {
            "train": train_loss,
            "validation": validation,
            "test": test,
            "selected_step": selected_step,
        },
        "speed": {
            "tokens_per_second": tokens / seconds if seconds > 0 else None,
            "seconds": seconds,
            "compile_seconds": compile_seconds,
        },
        "memory": {
            "peak_resident_bytes": peak_resident_bytes(),
            "program_bytes": program_bytes,
        },
        "skipped_updates": skipped,
        "versions": versions(),
        "hardware": hardware(),
        "started": started,
        "finished": now(),
    }


def label_of(config: RunConfig) -> str:
    """How records call a run."""
    return config.track.label or config.model.name


def failed_record(config: RunConfig, error: str) -> dict[str, Any]:
    """The record of a run that another process has to give up: what its configuration says."""
    shape = config.model.config
    return {
        "schema": SCHEMA,
        "status": "failed",
        "error": error,
        "label": label_of(config),
        "model": {
            "name": config.model.name,
            "field": shape.field,
            "block": shape.block,
            "scheme": shape.scheme,
            "config": shape.to_dict(),
        },
        "seed": config.train.seed,
        "training": describe_training(config),
        "finished": now(),
    }


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def peak_resident_bytes() -> int:
    """The largest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """What the run ran on, without naming the machine."""
    devices = jax.devices()
    return {
        "platform": devices[0].platform,
        "device": devices[0].device_kind,
        "devices": len(devices),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "system": platform.system(),
    }
