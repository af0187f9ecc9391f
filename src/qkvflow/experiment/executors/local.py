"""Worker processes on this machine.

On CPUs as many as cores, each with one XLA thread on a core of its own: two such processes make 1.2
to 1.7 times the steps of one run on two threads. One thread always, also for a single worker,
because sums are grouped by threads: the losses of a comparison are the same bits however many
workers it had. On accelerators one worker for each device, or several that share its memory.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkvflow.errors import OutOfMemory, UserError
from qkvflow.experiment.display import Display
from qkvflow.experiment.executors.base import AbstractExecutor, Board, ExecutorOptions, Stopped
from qkvflow.experiment.units import Queue, Unit
from qkvflow.limits import available_memory, cpu_limit, memory_limit
from qkvflow.zoo.plugins import plugin_setup
from qkvflow.zoo.registry import EXECUTORS

_MEMORY_SHARE = 0.8
"""Of what is free, for all workers together."""
_POLL_SECONDS = 0.25
_GRACE_SECONDS = 120.0
"""How long workers may take to save their runs."""


class Worker:
    """A worker process and the pipes to it."""

    def __init__(self, name: str, setup: Mapping[str, Any], env: dict[str, str], log: Path) -> None:
        self.name, self.log = name, log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "qkvflow.experiment.worker", json.dumps(setup)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=env,
                # Ctrl-C is for us, who tell the workers.
                start_new_session=True,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._jobs, self.answers = self.process.stdin, self.process.stdout

    def give(self, unit: Unit) -> None:
        # A worker that is gone is noticed when its answers end.
        with contextlib.suppress(BrokenPipeError):
            self._jobs.write(json.dumps(dict(unit.job)).encode() + b"\n")
            self._jobs.flush()

    def ending(self) -> str:
        """How the process ended, in words."""
        code = self.process.wait()
        if code < 0:
            reason = " (out of memory?)" if -code == signal.SIGKILL else ""
            return f"was ended by {signal.Signals(-code).name}{reason}"
        lines = [line.strip() for line in _tail(self.log).splitlines() if line.strip()]
        return f"ended with code {code}" + (f": {lines[-1][:200]}" if lines else "")

    def close(self) -> None:
        for pipe in (self._jobs, self.answers):
            with contextlib.suppress(OSError):
                pipe.close()


@EXECUTORS.register("local")
class Local(AbstractExecutor):
    def __init__(self, options: ExecutorOptions) -> None:
        if options != ExecutorOptions(options.workers):
            raise UserError(
                "--ray-address, --cpus-per-run and --gpus-per-run are for --executor ray; give it "
                "too, or leave them out"
            )
        self._options = options

    def run(self, queue: Queue, *, logs: Path, display: Display, caught: list[int]) -> None:
        board = Board(queue, display)
        if not queue.left:
            return
        logs.mkdir(parents=True, exist_ok=True)
        accelerators = count_accelerators()
        count = self._options.workers or suggest_workers(accelerators, queue.bytes)
        count = min(count, queue.left)
        if not accelerators:
            _check_workers(count, queue.bytes)
        cores = [] if accelerators else allowed_cores()[: self._options.workers]
        crew = _Crew(count, accelerators, logs, cores)
        try:
            while queue.left or board.running:
                if caught or board.blocked is not None:
                    break
                crew.employ(board)
                crew.listen(board)
                board.show()
            crew.dismiss(board)
        finally:
            crew.kill()
        board.raise_if_blocked()
        if caught:
            raise Stopped(caught[0])


class _Crew:
    """The workers of one call."""

    def __init__(self, count: int, accelerators: int, logs: Path, cores: list[int]) -> None:
        self._count, self._logs, self._cores = count, logs, cores
        self._accelerators = accelerators
        self._workers: dict[str, Worker] = {}
        self._selector = selectors.DefaultSelector()

    def employ(self, board: Board) -> None:
        """Give every idle worker a unit, and start workers that are missing."""
        for index in range(self._count):
            name = str(index)
            if name in board.running or not board.queue.left:
                continue
            unit = board.take()
            if unit is None:
                return
            worker = self._workers.get(name) or self._start(index)
            board.running[name] = unit
            worker.give(unit)

    def _start(self, index: int) -> Worker:
        env, core = worker_environment(index, self._count, self._accelerators)
        setup = {"plugins": plugin_setup(), "core": core, "cores": self._cores}
        worker = Worker(str(index), setup, env, self._logs / f"worker-{index}.log")
        self._workers[worker.name] = worker
        self._selector.register(worker.answers, selectors.EVENT_READ, worker)
        return worker

    def listen(self, board: Board, seconds: float = _POLL_SECONDS) -> None:
        """Take what workers say, for a moment."""
        for key, _ in self._selector.select(seconds):
            worker: Worker = key.data
            line = worker.answers.readline()
            if line:
                board.answer(worker.name, json.loads(line))
                continue
            how = worker.ending()
            self._forget(worker)
            if worker.name in board.running:
                board.died(worker.name, how)

    def dismiss(self, board: Board) -> None:
        """Ask all to stop, and wait until the runs are saved."""
        for worker in list(self._workers.values()):
            worker.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_SECONDS
        while board.running and time.monotonic() < deadline:
            for key, _ in self._selector.select(_POLL_SECONDS):
                worker: Worker = key.data
                if not worker.answers.readline():
                    worker.process.wait()
                    self._forget(worker)
                board.running.pop(worker.name, None)

    def _forget(self, worker: Worker) -> None:
        self._selector.unregister(worker.answers)
        worker.close()
        del self._workers[worker.name]

    def kill(self) -> None:
        for worker in list(self._workers.values()):
            self._forget(worker)
            if worker.process.poll() is None:
                worker.process.kill()
            worker.process.wait()
        self._selector.close()


def _check_workers(count: int, bytes_per_run: int) -> None:
    """Refuse more workers than memory holds; a single run says itself what it takes."""
    most = memory_limit()
    if count > 1 and most is not None and count * bytes_per_run > most:
        raise OutOfMemory(
            f"out of memory: {count} workers take about {count * bytes_per_run / 1e9:.1f} GB and "
            f"there are {most / 1e9:.1f} GB; give at most --workers {most // bytes_per_run or 1}"
        )


def suggest_workers(accelerators: int, bytes_per_run: int) -> int:
    """One for each accelerator, or for each core, as far as memory goes."""
    if accelerators:
        return accelerators
    free = available_memory()
    fit = (
        cpu_limit()
        if free is None or not bytes_per_run
        else int(_MEMORY_SHARE * free / bytes_per_run)
    )
    return max(1, min(cpu_limit(), fit))


def worker_environment(
    index: int, workers: int, accelerators: int
) -> tuple[dict[str, str], int | None]:
    """The environment of a worker, and the core it is held to."""
    env = dict(os.environ)
    if accelerators:
        sharing = -(-workers // accelerators)
        env["CUDA_VISIBLE_DEVICES"] = str(index % accelerators)
        env["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / sharing:.3f}"
        return env, None
    # One thread in XLA's pools and in those of libraries beside it.
    env |= {"PJRT_NPROC": "1", "NPROC": "1", "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    cores = allowed_cores()
    return env, cores[index] if workers <= len(cores) else None


def allowed_cores() -> list[int]:
    """The cores that this process may be held to; none where a system has no such thing."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:
        return []


def count_accelerators() -> int:
    """Devices that are no CPUs, asked of JAX in another process: this one must not take them."""
    if os.environ.get("JAX_PLATFORMS", "").split(",")[0] == "cpu":
        return 0
    places = ("/dev/nvidia0", "/dev/kfd", "/dev/accel0", "/dev/vfio/0")
    if not any(os.path.exists(place) for place in places):
        return 0
    code = "import jax; print(jax.device_count() if jax.default_backend() != 'cpu' else 0)"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    words = asked.stdout.split()
    return int(words[-1]) if asked.returncode == 0 and words and words[-1].isdecimal() else 0


def _tail(path: Path) -> str:
    try:
        return path.read_bytes()[-4096:].decode("utf-8", errors="replace")
    except OSError:
        return ""
