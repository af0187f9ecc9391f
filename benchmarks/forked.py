"""Calls of the command line in processes forked from one that has imported everything and has not
started JAX: a call costs what it does, not ten seconds of imports."""

import contextlib
import gc
import importlib
import os
import pkgutil
import resource
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

_PRELOADED = (
    *("matplotlib.figure", "matplotlib.backends.backend_agg", "diffrax", "orbax.checkpoint"),
    *("lm_eval.tasks", "lm_eval.evaluator", "optuna", "tensorboardX"),
)
_MOST_DATA, _MOST_FILE = 6 << 30, 256 << 20
"""What a call may allocate, and write into one file."""


def prepare(folder: Path) -> None:
    """Everything imported, nothing started; what calls leave behind stays in the folder."""
    home = {"HOME": folder / "home", "XDG_CACHE_HOME": folder / "home"}
    os.environ.update({name: str(path) for name, path in home.items()})
    offline = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
    os.environ.update(dict.fromkeys(offline, "1"))
    os.environ.update({"WANDB_MODE": "disabled", "JAX_PLATFORMS": "cpu", "COLUMNS": "100"})
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    os.environ.setdefault("QKVFLOW_CACHE", str(folder / "cache"))
    # What one call has compiled no other compiles again, however small it is.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "xla"))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    (folder / "home").mkdir()
    package = importlib.import_module("qkvflow")
    for found in pkgutil.walk_packages(package.__path__, "qkvflow."):
        # Files that run when they are imported are called __main__.
        if not found.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(found.name)
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def start(
    words: Sequence[str], folder: Path, *, limited: bool = True, most_file: int = _MOST_FILE
) -> int:
    """A call in a process of its own; its output goes to files in the folder. With `most_file`,
    writes beyond so many bytes of a file fail."""
    if (pid := os.fork()) != 0:
        return pid
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        for stream, name in ((0, os.devnull), (1, ".stdout"), (2, ".stderr")):
            flags = os.O_RDONLY if stream == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(name, flags), stream)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if limited:
            resource.setrlimit(resource.RLIMIT_DATA, (_MOST_DATA, _MOST_DATA))
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_file, most_file))
        from qkvflow.cli import main

        sys.argv = ["qkvflow", *words]
        code = main(list(words))
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:
        code = 1
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(code)
