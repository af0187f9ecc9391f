"""Speed, measured on its own: `speed.json`.

Every model trains alone on the same shapes of batches. Compilation is timed without a cache; then
come warm-up steps, and then rounds in which every model has its turn, so that whatever else
happens on the machine meets all of them. On a CPU each model lives in a process of its own, which
is what makes its resident size its own; elsewhere all share this process, which owns the device,
and resident sizes are left out.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qkvflow.lm.assembly import abstract_model
from qkvflow.runs.config import RunConfig, make_config
from qkvflow.runs.record import peak_resident_bytes, program_bytes
from qkvflow.training.optim import optimiser
from qkvflow.training.schedule import make_schedule
from qkvflow.training.step import State, init_state, make_multi_step
from qkvflow.zoo.plugins import load_plugins

_ROUND_SECONDS = 0.3
_MOST_STEPS = 64
_WARM_UP = 3


class Bench:
    """One model, compiled and warm."""

    def __init__(self, config: RunConfig, vocab_size: int) -> None:
        shape, train = config.model.config, config.train
        schedule = make_schedule(config.optim, max(train.steps, 2))
        chosen = optimiser(config.optim, schedule)
        params, static = abstract_model(config, vocab_size)
        self._state = _any_state(jax.eval_shape(lambda each: init_state(each, chosen), params))
        chunk = make_multi_step(
            static,
            chosen,
            schedule,
            max_steps=_MOST_STEPS,
            batch_size=train.batch_size,
            context=config.context,
            grad_accum=train.grad_accum,
            dropout=shape.dropout > 0 or shape.attention_dropout > 0,
        )
        # What the tokens are does not change the time; there are enough not to lie in a cache.
        random = np.random.default_rng(0).integers(0, vocab_size, max(1 << 16, 2 * config.context))
        self._tokens = jnp.asarray(random, jnp.int32)
        self._seed = jnp.zeros((), jnp.int32)
        begin = time.perf_counter()
        lowered = jax.jit(chunk, donate_argnums=0).lower(
            self._state, self._seed, self._tokens, jnp.asarray(1, jnp.int32)
        )
        self._program = lowered.compile()
        self.compile_seconds = time.perf_counter() - begin
        self._count = 1
        self.run()
        spent = self.run(_WARM_UP) / _WARM_UP
        self._count = max(1, min(_MOST_STEPS, round(_ROUND_SECONDS / max(spent, 1e-6))))

    def run(self, count: int | None = None) -> float:
        """Seconds of a round of steps."""
        steps = jnp.asarray(count or self._count, jnp.int32)
        begin = time.perf_counter()
        self._state, metrics = self._program(self._state, self._seed, self._tokens, steps)
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
    """A `Bench` in a process of its own, which waits while others have their turn."""

    def __init__(self, config: RunConfig, vocab_size: int, plugins: Sequence[str]) -> None:
        environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "0"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "qkvflow.experiment.speed"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            # A Ctrl-C is for the one that asked; closing the pipe ends this process.
            start_new_session=True,
        )
        job = {"config": config.to_dict(), "vocab_size": vocab_size, "plugins": list(plugins)}
        self._described = self._ask(json.dumps(job))

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            assert self._process.stderr is not None
            said = self._process.stderr.read().strip().splitlines()
            raise RuntimeError(said[-1] if said else "the process ended")
        return json.loads(answer)

    def round(self) -> dict[str, Any]:
        return self._ask("round")

    def describe(self) -> dict[str, Any]:
        return self._described

    def resident(self) -> dict[str, Any]:
        return self._ask("resident")

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
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
    plugins: Sequence[str] = (),
    told: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """The content of `speed.json`. A model that cannot be run is listed with its error."""
    apart = jax.devices()[0].platform == "cpu"
    benches: dict[str, Bench | Remote] = {}
    failed: dict[str, str] = {}
    times: dict[str, list[float]] = {}
    first = next(iter(configs.values()))
    try:
        for label, config in configs.items():
            told(f"speed: preparing {label}")
            try:
                benches[label] = (
                    Remote(config, vocab_size, plugins) if apart else _cold(config, vocab_size)
                )
                times[label] = []
            except Exception as error:
                failed[label] = " ".join(str(error).split())[:300]
        for number in range(rounds):
            told(f"speed: round {number + 1} of {rounds}")
            # There and back again: no model is always the one after a certain other.
            for label in list(benches)[:: 1 if number % 2 == 0 else -1]:
                times[label].append(benches[label].round()["ms"])
        tokens = first.tokens_per_step
        measured = {
            label: {
                **_summary(times[label], tokens),
                **bench.describe(),
                "resident_bytes": bench.resident()["resident_bytes"] if apart else None,
            }
            for label, bench in benches.items()
        }
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


def _any_state(shapes: State) -> State:
    """A state to take steps from. Which weights it starts with does not change the time of a
    step, and drawing them properly would take longer than everything else here."""
    random = np.random.default_rng(0)

    def weights(leaf: Any) -> Any:
        return jnp.asarray(0.02 * random.standard_normal(leaf.shape), leaf.dtype)

    zeros = jax.tree.map(lambda leaf: jnp.asarray(np.zeros(leaf.shape, leaf.dtype)), shapes)
    return zeros._replace(params=jax.tree.map(weights, shapes.params))


def _cold(config: RunConfig, vocab_size: int) -> Bench:
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
    load_plugins(job["plugins"])
    bench = Bench(make_config(job["config"]), job["vocab_size"])
    print(json.dumps(bench.describe()), flush=True)
    for line in sys.stdin:
        answer = bench.round() if line.strip() == "round" else bench.resident()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve()
