"""A worker: performs units one after another, in a process of its own.

Jobs come in as JSON, one on a line, and each is answered with a line: how it ended. What is printed
meanwhile goes to stderr, which the executor keeps in a file. When the executor goes away, the run
that is under way is saved and the worker ends.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkvflow import allocator, threads
from qkvflow.errors import ResourceError, UserError
from qkvflow.zoo.plugins import take_setup

LOCK_SECONDS = 60.0
"""How long a run directory may still be in use by a process that is about to end."""
_KEPT = 8
"""Models whose programs are kept for their next seeds; those of more would only take memory."""
_models: set[Path] = set()
"""Those of the runs since programs were last forgotten."""
_cores: list[int] = []
"""Those that workers of this machine have. A measurement is alone, and has all of them."""


def perform(job: Mapping[str, Any]) -> dict[str, Any]:
    """Do one unit. The answer has `stopped`, `blocked` or `failed` if it did not get to its end.

    `blocked` is for what is in the way and not in the request: a full disk, a directory in use. A
    run that diverges is done: its record says so.
    """
    from qkvflow.training import Diverged, Interrupted

    try:
        if job["kind"] == "run":
            _run(job)
        else:
            _measure(job)
    except Interrupted as stopped:
        return {"stopped": stopped.signum}
    except Diverged:
        pass
    except KeyboardInterrupt:
        return {"stopped": int(signal.SIGINT)}
    except ResourceError as error:
        return {"blocked": str(error)}
    except UserError as error:
        return {"failed": str(error)}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}
    return {"done": True}


def _run(job: Mapping[str, Any]) -> None:
    import jax

    from qkvflow.training import resume

    try:
        resume(job["directory"], patience=LOCK_SECONDS)
    finally:
        _models.add(Path(job["directory"]).parent)
        if len(_models) > _KEPT:
            _models.clear()
            jax.clear_caches()


def _measure(job: Mapping[str, Any]) -> None:
    from qkvflow.digests import write_sealed
    from qkvflow.experiment.speed import measure_speed
    from qkvflow.runs.config import make_config
    from qkvflow.runs.rundir import writing

    configs = {label: make_config(content) for label, content in job["configs"].items()}
    how = {"vocab_size": job["vocab_size"], "rounds": job["rounds"], "cores": _cores}
    content = measure_speed(configs, **how)
    path = Path(job["out"])
    with writing(path.parent):
        write_sealed(path, content)


def _end_with_executor(lines: Any, jobs: list[str], arrived: threading.Event) -> None:
    """Read jobs as they come; at the end of them, ask the run that is under way to stop."""
    for line in lines:
        jobs.append(line)
        arrived.set()
    jobs.append("")
    arrived.set()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    setup = json.loads(sys.argv[1])
    if setup["core"] is not None:
        os.sched_setaffinity(0, {setup["core"]})
    _cores[:] = setup["cores"]
    allocator.configure_malloc()
    threads.configure_threads()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    # Between units there is nothing to save.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        take_setup(setup["plugins"])
    except UserError as error:
        print(json.dumps({"blocked": str(error)}), file=answers)
        return 2
    jobs: list[str] = []
    arrived = threading.Event()
    reader = threading.Thread(
        target=_end_with_executor, args=(sys.stdin, jobs, arrived), daemon=True
    )
    reader.start()
    while True:
        arrived.wait()
        arrived.clear()
        while jobs:
            line = jobs.pop(0)
            if not line:
                return 0
            print(json.dumps(perform(json.loads(line))), file=answers)


if __name__ == "__main__":
    sys.exit(main())
