"""Speed, measured on its own: `speed.json`.

Every model trains alone on the same shapes of batches, with the program and, on a CPU, the one
thread that runs of a comparison have. Compilation is timed without a cache, with a model on every
core that workers have; then come warm-up steps, and then rounds in which every model has its
turn alone, so that whatever else happens on the machine meets all of them. On a CPU each model
lives in a process of its own, which is what makes its resident size its own; elsewhere all share
this process, which owns the device, and resident sizes are left out.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qkvflow.distributed.memory import program_bytes
from qkvflow.runs.config import RunConfig, make_config
from qkvflow.runs.record import peak_resident_bytes
from qkvflow.training.dispatch import MAX_STEPS
from qkvflow.training.program import make_program
from qkvflow.training.step import TrainState
from qkvflow.zoo.plugins import plugin_setup, take_setup

_ROUND_SECONDS = 0.3
_WARM_UP = 3


class Bench:
    """One model, compiled and warm."""

    def __init__(self, config: RunConfig, vocab_size: int) -> None:
        program = make_program(config, vocab_size)
        self._state = _any_state(program.state)
        self._hyper = jax.tree.map(jnp.asarray, program.hyper())
        # What the tokens are does not change the time; there are enough not to lie in a cache.
        random = np.random.default_rng(0).integers(0, vocab_size, max(1 << 16, 2 * config.context))
        self._tokens = jnp.asarray(random, jnp.int32)
        multi_step = program.multi_step(MAX_STEPS, on_device=True)
        begin = time.perf_counter()
        lowered = jax.jit(multi_step, donate_argnums=0).lower(
            self._state, self._hyper, self._tokens, jnp.asarray(1, jnp.int32)
        )
        self._program = lowered.compile()
        self.compile_seconds = time.perf_counter() - begin
        self._count = 1
        self.run()
        spent = self.run(_WARM_UP) / _WARM_UP
        self._count = max(1, min(MAX_STEPS, round(_ROUND_SECONDS / max(spent, 1e-6))))

    def run(self, count: int | None = None) -> float:
        """Seconds of a round of steps."""
        steps = jnp.asarray(count or self._count, jnp.int32)
        begin = time.perf_counter()
        self._state, metrics = self._program(self._state, self._hyper, self._tokens, steps)
        jax.block_until_ready((self._state, metrics))
        return time.perf_counter() - begin

    def round(self) -> dict[str, Any]:
        return {"ms": 1e3 * self.run() / self._count}

    def describe(self) -> dict[str, Any]:
        return {
            "compile_seconds": self.compile_seconds,
            "program_bytes": program_bytes(self._program),
            "steps_per_round": self._count,
        }

    def resident(self) -> dict[str, Any]:
        return {"resident_bytes": peak_resident_bytes()}

    def close(self) -> None:
        pass


class Remote:
    """A `Bench` in a process of its own, which is made while this one goes on: `describe` waits for
    it. Afterwards it waits while others have their turn. It may be held to a core."""

    def __init__(self, config: RunConfig, vocab_size: int, core: int | None = None) -> None:
        environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "0"}
        # A file, which no amount of output can fill up as it does a pipe.
        self._errors = tempfile.TemporaryFile(  # noqa: SIM115 - closed with the process
            "w+", encoding="utf-8", errors="replace"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "qkvflow.experiment.speed"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
            # A Ctrl-C is for the one that asked; closing the pipe ends this process.
            start_new_session=True,
        )
        self._described: dict[str, Any] | None = None
        job = {"config": config.to_dict(), "vocab_size": vocab_size, "core": core}
        self._tell(json.dumps({**job, "plugins": plugin_setup()}))

    def _tell(self, line: str) -> None:
        """That the process has ended is found when it does not answer."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not (answer := self._process.stdout.readline()):
            self._errors.seek(0)
            said = [line for line in self._errors.read().splitlines() if line.strip()]
            code = self._process.wait()
            how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise RuntimeError(f"{how}{f': {said[-1].strip()}' if said else ''}")
        return json.loads(answer)

    def round(self) -> dict[str, Any]:
        self._tell("round")
        return self._answer()

    def describe(self) -> dict[str, Any]:
        if self._described is None:
            self._described = self._answer()
        return self._described

    def resident(self) -> dict[str, Any]:
        self._tell("resident")
        return self._answer()

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def measure_speed(
    configs: Mapping[str, RunConfig],
    *,
    vocab_size: int,
    rounds: int,
    cores: Sequence[int] = (),
) -> dict[str, Any]:
    """The content of `speed.json`. A model that cannot be run is listed with its error, and the
    others go on. With `cores`, a model is made on each of them at a time."""
    apart = jax.devices()[0].platform == "cpu"
    benches: dict[str, Bench | Remote] = {}
    failed: dict[str, str] = {}
    times: dict[str, list[float]] = {}
    measured: dict[str, Any] = {}
    first = next(iter(configs.values()))

    def attempt(label: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as error:
            failed[label] = " ".join(str(error).split())[:300]
            if (bench := benches.pop(label, None)) is not None:
                bench.close()
            return None

    try:
        make = Remote if apart else _cold
        places = list(cores) if apart and cores else [None]
        labels = list(configs)
        for start in range(0, len(labels), len(places)):
            together = labels[start : start + len(places)]
            for label, core in zip(together, places, strict=False):
                bench = attempt(label, partial(make, configs[label], vocab_size, core))
                if bench is not None:
                    benches[label], times[label] = bench, []
            for label in together:
                if label in benches:
                    attempt(label, benches[label].describe)
        for number in range(rounds):
            # There and back again: no model is always the one after a certain other.
            for label in list(benches)[:: 1 if number % 2 == 0 else -1]:
                if (made := attempt(label, benches[label].round)) is not None:
                    times[label].append(made["ms"])
        for label in list(benches):
            resident = (
                attempt(label, benches[label].resident) if apart else {"resident_bytes": None}
            )
            if resident is not None:
                summary = _summary(times[label], first.tokens_per_step)
                measured[label] = {**summary, **benches[label].describe(), **resident}
    finally:
        for bench in benches.values():
            bench.close()
    return {
        "rounds": rounds,
        "batch_size": first.train.batch_size,
        "context": first.context,
        "models": measured,
        "failed": failed,
    }


def _any_state(shapes: TrainState) -> TrainState:
    """A state to take steps from. Which weights it starts with does not change the time of a
    step, and drawing them properly would take longer than everything else here."""
    random = np.random.default_rng(0)

    def weights(leaf: Any) -> Any:
        return jnp.asarray(0.02 * random.standard_normal(leaf.shape), leaf.dtype)

    zeros = jax.tree.map(lambda leaf: jnp.asarray(np.zeros(leaf.shape, leaf.dtype)), shapes)
    return zeros._replace(params=jax.tree.map(weights, shapes.params))


def _cold(config: RunConfig, vocab_size: int, core: None) -> Bench:
    """Compiled without the cache: its time is the time of a first compilation."""
    before = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        return Bench(config, vocab_size)
    finally:
        jax.config.update("jax_enable_compilation_cache", before)


def _summary(times: Sequence[float], tokens: int) -> dict[str, Any]:
    q1, median, q3 = (float(np.quantile(times, share)) for share in (0.25, 0.5, 0.75))
    return {
        "ms_per_step": {"median": median, "q1": q1, "q3": q3, "all": list(times)},
        "tokens_per_second": 1e3 * tokens / median,
    }


def _serve() -> None:
    """The other side of `Remote`: one JSON line for each line that comes in."""
    job = json.loads(sys.stdin.readline())
    if job["core"] is not None:
        os.sched_setaffinity(0, {job["core"]})
    take_setup(job["plugins"])
    bench = Bench(make_config(job["config"]), job["vocab_size"])
    print(json.dumps(bench.describe()), flush=True)
    for line in sys.stdin:
        answer = bench.round() if line.strip() == "round" else bench.resident()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve()
