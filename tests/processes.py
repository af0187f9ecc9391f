"""Real processes: those that train, for the tests that kill them, and those that run what follows
`python` on a command line.

Forked from a server that has imported everything and has started nothing, so that each costs what
it does, and not two seconds of imports. What is read while libraries are imported they cannot be
told: options of Python itself, and JAX's variables.
"""

import atexit
import contextlib
import multiprocessing
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

SRC = Path(__file__).parents[1] / "src"
_MODULES = [
    ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(SRC.rglob("*.py"))
    if path.name != "__main__.py"
]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([*_MODULES, "matplotlib.backends.backend_agg", "diffrax"])


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


class Forked:
    """`python WORDS` as `subprocess.Popen` would start it: `-m MODULE`, `-c CODE` or a file, and
    what that is given. `streams` are the descriptors of its stdin, stdout and stderr."""

    def __init__(
        self,
        words: Sequence[str],
        streams: Sequence[int],
        *,
        env: Mapping[str, str] | None = None,
        start_new_session: bool = False,
    ) -> None:
        env = dict(os.environ if env is None else env)
        late = [
            name
            for name in sorted({*env, *os.environ})
            if name.startswith(("JAX_", "PYTHON")) and name != "PYTHONPATH"
            if env.get(name) != os.environ.get(name)
        ]
        if late:
            raise ValueError(f"{', '.join(late)}: read at imports; start an interpreter")
        handed = [Connection(os.dup(each)) for each in streams]
        args = (list(words), env, handed, start_new_session)
        self._process = _CONTEXT.Process(target=_python, args=args)
        self._process.start()
        for each in handed:
            each.close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("python", timeout or 0)
        return self.returncode

    def send_signal(self, signum: int) -> None:
        # The server may have waited for it already, and not have said so yet.
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedWorkers:
    """Stands for the module `subprocess` where `experiment.executors.local` starts its workers."""

    PIPE, run = subprocess.PIPE, staticmethod(subprocess.run)

    def __init__(self) -> None:
        self.started: list[Forked] = []

    def Popen(
        self,
        words: Sequence[str],
        *,
        stdin: int,
        stdout: int,
        stderr: IO[bytes],
        env: Mapping[str, str],
        start_new_session: bool,
    ) -> Forked:
        assert (words[0], stdin, stdout) == (sys.executable, self.PIPE, self.PIPE)
        (read, own_write), (own_read, write) = os.pipe(), os.pipe()
        streams = [read, write, stderr.fileno()]
        worker = Forked(words[1:], streams, env=env, start_new_session=start_new_session)
        os.close(read)
        os.close(write)
        worker.stdin, worker.stdout = os.fdopen(own_write, "wb"), os.fdopen(own_read, "rb")
        self.started.append(worker)
        return worker


class Started:
    """A process whose output is read when it has ended."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str]) -> None:
        self._files = [tempfile.TemporaryFile("w+", encoding="utf-8") for _ in range(2)]  # noqa: SIM115
        with open(os.devnull) as nothing:
            streams = [nothing.fileno(), *(file.fileno() for file in self._files)]
            self._process = Forked(words, streams, env=env)
        self.args, self.pid = list(words), self._process.pid
        self.poll, self.send_signal = self._process.poll, self._process.send_signal

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def communicate(self, timeout: float = 600) -> tuple[str, str]:
        """What it has written to stdout and stderr."""
        try:
            self._process.wait(timeout)
        finally:
            self._process.kill()
        said = []
        for file in self._files:
            file.seek(0)
            said.append(file.read())
            file.close()
        return said[0], said[1]


def start_python(*words: object, **environment: str) -> Started:
    """`python WORDS` with these additions to the environment, going on by itself."""
    return Started([str(word) for word in words], {**os.environ, **environment})


def python(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python WORDS` with these additions to the environment, when it has ended."""
    process = start_python(*words, **environment)
    said, complaints = process.communicate()
    assert process.returncode is not None
    return subprocess.CompletedProcess(process.args, process.returncode, said, complaints)


def _python(
    words: list[str], env: dict[str, str], streams: list[Connection], new_session: bool
) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if new_session:
        os.setsid()
    paths = env.get("PYTHONPATH", "")
    if paths != os.environ.get("PYTHONPATH", ""):
        sys.path[:0] = paths.split(os.pathsep)
    os.environ.clear()
    os.environ.update(env)
    option, *rest = words
    try:
        if option == "-m":
            sys.modules.pop(rest[0], None)  # Or it is said to run twice.
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif option == "-c":
            sys.argv = ["-c", *rest[1:]]
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = words
            sys.path.insert(0, str(Path(option).parent))
            runpy.run_path(option, run_name="__main__")
    finally:
        atexit._run_exitfuncs()
