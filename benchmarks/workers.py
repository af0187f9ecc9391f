"""Contenders in processes of their own, with the same number of threads, that take turns.

PyTorch and JAX in one process share neither threads nor memory well: whichever runs second finds
the other's threads still spinning. Each contender is therefore `python -m MODULE --worker ...`,
which prints one line of facts about itself, and then the seconds of a call for every line it is
sent. Seconds are of the clock, or of the processor (all threads together).
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_FACTS = "facts "
_SECONDS = "seconds "
_CLOCK = "BENCHMARK_CLOCK"


def serve(call: Callable[[], Any], facts: Mapping[str, Any]) -> None:
    """Be a worker: warm up, say the facts, then make a call for every line of the input."""
    call()
    print(_FACTS + json.dumps(dict(facts)), flush=True)
    now = time.process_time if os.environ.get(_CLOCK) == "cpu" else time.perf_counter
    for _ in sys.stdin:
        start = now()
        call()
        print(f"{_SECONDS}{now() - start}", flush=True)


class Worker:
    def __init__(self, module: str, arguments: list[str], threads: int, clock: str):
        wanted = {
            name: str(threads)
            for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PJRT_NPROC", "NPROC")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, "--worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **wanted, _CLOCK: clock},
        )
        self.facts: dict[str, Any] = json.loads(self._line(_FACTS))

    def _line(self, start: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(start):
                return line.removeprefix(start)
        raise RuntimeError(f"a worker ended: {self.process.args}")

    def seconds(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._line(_SECONDS))

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def take_turns(
    module: str,
    contenders: Mapping[str, list[str]],
    *,
    rounds: int,
    threads: int,
    clock: str = "wall",
) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
    """Seconds per call of every contender in every round, and what each says of itself."""
    workers = {name: Worker(module, each, threads, clock) for name, each in contenders.items()}
    try:
        seconds: dict[str, list[float]] = {name: [] for name in workers}
        for number in range(rounds + 1):
            for name, worker in workers.items():
                taken = worker.seconds()
                if number:
                    seconds[name].append(taken)
        facts = {name: worker.facts for name, worker in workers.items()}
    finally:
        for worker in workers.values():
            worker.end()
    return {name: np.asarray(values) for name, values in seconds.items()}, facts
