"""Calls of the command line in processes forked from one that has imported everything and has not
started JAX: a call costs what it does, not ten seconds of imports.

So are the workers of a comparison. Its own process has started threads by then and must not be
forked, so that each call keeps a process beside it, as it was at the beginning, that forks them.
"""

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import resource
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_PRELOADED = (
    *("matplotlib.figure", "matplotlib.backends.backend_agg", "diffrax", "orbax.checkpoint"),
    *("lm_eval.tasks", "lm_eval.evaluator", "optuna", "tensorboardX"),
)
_EMPLOYERS = ("compare", "tune", "scaling-law")
"""Verbs that have workers."""
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
        from qkvflow.experiment.executors import local

        if words[:1] and words[0] in _EMPLOYERS:
            local.__dict__["subprocess"] = Forking()
        sys.argv = ["qkvflow", *words]
        code = _ended(lambda: main(list(words)))
    finally:
        os._exit(code)


def _ended(main: Callable[[], int]) -> int:
    """The exit code of what would be a program of its own."""
    code = 1
    try:
        code = main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
    return code


class Forking:
    """Stands for the module `subprocess` where workers are started."""

    PIPE, run = subprocess.PIPE, staticmethod(subprocess.run)

    def __init__(self) -> None:
        self._server, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ended: dict[int, int] = {}
        if os.fork() == 0:
            self._server.close()
            try:
                _serve(theirs)
            finally:
                os._exit(0)
        theirs.close()

    def Popen(self, words: Sequence[str], *, env: Mapping[str, str], stderr: Any, **_: Any) -> Any:
        return Forked(self, words, env, stderr)

    def ask(self, words: Sequence[str], env: Mapping[str, str], streams: list[int]) -> int:
        request = json.dumps({"words": list(words), "env": dict(env)}).encode()
        socket.send_fds(self._server, [request], streams)
        while (told := self.hear()) is None or "pid" not in told:
            pass
        return told["pid"]

    def hear(self, *, wait: bool = True) -> dict[str, int] | None:
        """What the server says next; how a worker ended is kept."""
        with contextlib.suppress(BlockingIOError):
            flags = 0 if wait else socket.MSG_DONTWAIT
            told = json.loads(self._server.recv(4096, flags) or b"{}")
            if "ended" in told:
                self.ended[told["ended"]] = os.waitstatus_to_exitcode(told["status"])
            return told
        return None


class Forked:
    """A worker, as `subprocess.Popen` shows it."""

    def __init__(
        self, forking: Forking, words: Sequence[str], env: Mapping[str, str], errors: Any
    ) -> None:
        self._forking = forking
        (read, own_write), (own_read, write) = os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(own_write, "wb"), os.fdopen(own_read, "rb")
        self.pid = forking.ask(words, env, [read, write, errors.fileno()])
        os.close(read)
        os.close(write)

    def poll(self) -> int | None:
        while self.pid not in self._forking.ended and self._forking.hear(wait=False):
            pass
        return self._forking.ended.get(self.pid)

    def wait(self) -> int:
        while self.pid not in self._forking.ended:
            self._forking.hear()
        return self._forking.ended[self.pid]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _serve(asked: socket.socket) -> None:
    """Fork workers and say how they end, until the call is over."""
    asked.setblocking(False)
    while True:
        with contextlib.suppress(BlockingIOError):
            message, streams, *_ = socket.recv_fds(asked, 1 << 20, 3)
            if not message:
                return
            if (pid := os.fork()) == 0:
                asked.close()
                _work(json.loads(message), streams)
            for each in streams:
                os.close(each)
            asked.sendall(json.dumps({"pid": pid}).encode())
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                asked.sendall(json.dumps({"ended": ended[0], "status": ended[1]}).encode())
        time.sleep(0.01)


def _work(request: dict[str, Any], streams: list[int]) -> None:
    from qkvflow.experiment import worker

    code = 70
    try:
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(request["env"])
        _, _, _, *sys.argv[1:] = request["words"]
        code = _ended(worker.main)
    finally:
        os._exit(code)
