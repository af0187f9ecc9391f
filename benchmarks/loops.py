"""What a loop costs: a core of r steps over r times one, and each injection over none.

    python -m benchmarks.loops [--rounds 9]

Forward and backward pass of the core (a cycle of four layers), in CPU seconds of the process, which
other work on the machine disturbs less than the clock; contenders take turns. The head is left out,
and what the embedding costs alone is taken off.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import qkvflow
from benchmarks.timing import interleave
from qkvflow.zoo import INJECTIONS

LOOPS = (1, 2, 4, 8)
SHAPE: dict[str, Any] = {"prelude": 0, "coda": 0, "layers_per_loop": 4, "context": 256}
AT = 4
"""Loops at which injections are compared."""


def contender(tokens: jax.Array, *, core: bool = True, **changes: Any) -> Callable[[], None]:
    model = qkvflow.build("cycle", vocab_size=256, key=jax.random.key(0), **SHAPE, **changes)

    @eqx.filter_jit
    @eqx.filter_grad
    def gradient(model: qkvflow.LanguageModel) -> jax.Array:
        x = model.integrate(tokens).x if core else model.core_input(tokens)
        return jnp.mean(jnp.square(x))

    return lambda: jax.block_until_ready(gradient(model))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    tokens = jax.random.randint(jax.random.key(1), (2, SHAPE["context"]), 0, 256)
    # One after the other, so that few programs are held at once.
    by_loops = interleave(
        {
            "0": contender(tokens, core=False),
            **{str(r): contender(tokens, num_steps=r) for r in LOOPS},
        },
        rounds=rounds,
        clock=time.process_time,
    )
    print("loops  CPU ms  over r times one")
    cost = {r: np.median(by_loops[str(r)]) - np.median(by_loops["0"]) for r in LOOPS}
    for r in LOOPS:
        print(f"{r:5d}  {1e3 * cost[r]:6.0f}  {cost[r] / (r * cost[1]):.3f}")
    by_injection = interleave(
        {name: contender(tokens, num_steps=AT, injection=name) for name in INJECTIONS},
        rounds=rounds,
        clock=time.process_time,
    )
    print(f"\ninjection  CPU ms  over none ({AT} loops)")
    none = by_injection["none"]
    for name, each in by_injection.items():
        print(f"{name:9s}  {1e3 * np.median(each):6.0f}  {np.median(each / none):.3f}")


if __name__ == "__main__":
    main()
