"""Real processes that train, for the tests that kill them.

Forked from a server that has imported everything, so that each costs a second and not ten.
"""

import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["qkvflow.training", "matplotlib.figure", "processes"])


def pipe() -> Any:
    return _CONTEXT.Pipe(duplex=False)


def fake_sample(model: Any, tokenizer: Any, *, prompt: str, seed: int) -> str:
    """Text that depends on the weights, without generating."""
    return f"{float(abs(model.embedding).sum()):.9f}"


def _work(
    verb: str,
    config: dict[str, Any] | None,
    directory: str,
    largest_file: int | None,
    said: Any,
) -> None:
    import jax

    from qkvflow.errors import UserError
    from qkvflow.runs.config import make_config
    from qkvflow.training import Interrupted, loop, resume, train

    loop.sample_text = fake_sample
    if largest_file is not None:
        # Writes beyond this fail as on a full disk. That is not meant for the compilation cache,
        # nor for what Orbax prints when it happens.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        jax.config.update("jax_enable_compilation_cache", False)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    try:
        if verb == "train":
            train(make_config(config or {}), directory)
        else:
            resume(directory)
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(128 + stopped.signum)
    except UserError as error:
        if said is not None:
            said.send(str(error))
        sys.exit(2)


def start(
    verb: str,
    directory: Path,
    config: dict[str, Any] | None = None,
    largest_file: int | None = None,
    said: Any = None,
) -> Any:
    """`said` is the end of a pipe for the line a user would read."""
    args = (verb, config, str(directory), largest_file, said)
    process = _CONTEXT.Process(target=_work, args=args)
    process.start()
    return process


def kill_when(process: Any, moment: Callable[[], bool], how: int = signal.SIGKILL) -> bool:
    """Send the signal as soon as `moment()` is true; whether the process was alive then."""
    while process.is_alive():
        if moment():
            os.kill(process.pid, how)
            process.join(120)
            return process.exitcode not in (0, None)
        time.sleep(0.0005)
    process.join()
    return False
