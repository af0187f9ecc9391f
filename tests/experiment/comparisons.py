"""A small comparison, for the tests that run one."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
from processes import ForkedWorkers

from qkvflow.experiment.executors import (
    AbstractExecutor,
    ExecutorOptions,
    local,
    make_executor,
)
from qkvflow.experiment.plan import Plan, make_plan


def environment(**more: str) -> dict[str, str]:
    """For processes: compiled as quickly as tests compile, and kept where tests keep it."""
    return {
        **os.environ,
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.values["jax_compilation_cache_dir"]),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        **more,
    }


def write_text(path: Path) -> Path:
    """About 20 kB of words in a fixed random order."""
    words = ["depth", "is", "a", "coordinate", "and", "the", "flow", "of", "weights", "runs", "on"]
    path.write_text(" ".join(np.random.default_rng(0).choice(words, 4000)) + "\n")
    return path


def content(text: Path, **changes: Any) -> dict[str, Any]:
    """A plan that runs in seconds."""
    base: dict[str, Any] = {
        "models": ["standard"],
        "seeds": 2,
        "budget": {"steps": 12},
        "data": {"spec": f"file:{text}?split=0.8,0.1,0.1", "tokenizer": "char"},
        "model": {"d_model": 16, "num_steps": 2, "num_heads": 2, "context": 16, "d_time": 4},
        "train": {"batch_size": 4, "log_every": 2, "steps_per_dispatch": 2, "samples": "none"},
        "optim": {"lr": 0.003, "warmup": 2},
        "checkpoint": {"every": 4},
        "evaluations": 3,
        "speed_rounds": 0,
    }
    return {**base, **changes}


def workers(count: int) -> AbstractExecutor:
    return make_executor("local", ExecutorOptions(count))


def small_plan(text: Path, **changes: Any) -> Plan:
    return make_plan(content(text, **changes))


def read_json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


@contextlib.contextmanager
def forked_workers() -> Iterator[None]:
    """Workers of `local` without their imports: processes as before, but forked."""
    with patch.object(local, "subprocess", ForkedWorkers()):
        yield


def worker_pids() -> list[int]:
    """Workers that this process started, and that are still there."""
    found = []
    starts: Any = local.subprocess
    if isinstance(starts, ForkedWorkers):
        found += [each.pid for each in starts.started if each.poll() is None]
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
            command = path.with_name("cmdline").read_text()
        except OSError:
            continue
        if int(words[1]) == os.getpid() and "-m\0qkvflow.experiment.worker" in command:
            found.append(int(path.parent.name))
    return found


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl` without their times."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
