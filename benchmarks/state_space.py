"""State space layers alone: chunked against sequential, and how their time grows with length.

    python -m benchmarks.state_space [--rounds 5]

Forward and backward of one layer, 256 wide, batch 8 at every length. `no recurrence` is the same
layer with its projections, convolution and gate but no states: no evaluation can be faster.
"""

import argparse
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from benchmarks.timing import interleave, report
from qkvflow.blocks import SSM, Rows, SelectiveSSM
from qkvflow.zoo import MIXERS, ModelConfig

BATCH, WIDTH = 8, 256


def training(layer: Any, evaluate: Callable[..., Any], seq: int) -> Callable[[], None]:
    x = jax.random.normal(jax.random.key(1), (BATCH * seq, WIDTH))
    rows = Rows(BATCH, seq)
    params, static = eqx.partition(layer, eqx.is_inexact_array)

    @jax.jit
    def gradient(params: Any, x: Any) -> Any:
        def objective(params: Any, x: Any) -> Any:
            return jnp.sum(jnp.sin(evaluate(eqx.combine(params, static), x, rows)))

        return jax.grad(objective, argnums=(0, 1))(params, x)

    return lambda: jax.block_until_ready(gradient(params, x))


def without(kind: Any) -> Callable[..., Any]:
    def linear(log_decay: Any, u: Any, initial: Any) -> Any:
        return u * log_decay[None, None], initial

    def selective(values: Any, delta: Any, a: Any, b: Any, c: Any, initial: Any) -> Any:
        mixed = jnp.sum(b * c, axis=(2, 3))[:, :, None]
        return values * (delta * a[None, None] + mixed)[..., None], initial

    def evaluate(layer: Any, x: Any, rows: Rows) -> Any:
        initial = layer.init_state(rows.batch, rows.seq, jnp.dtype(jnp.float32))
        return layer._run(x, rows, initial, linear if kind is SSM else selective)[0]

    return evaluate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    key = jax.random.key(0)
    for name, kind in {"ssm": SSM, "selective-ssm": SelectiveSSM}.items():
        layer = MIXERS[name](ModelConfig(block=name, d_model=WIDTH), 1.0, key)
        contenders = {
            "chunked 1024": training(layer, kind.__call__, 1024),
            "sequential 1024": training(layer, kind.scanned, 1024),
            "no recurrence 1024": training(layer, without(kind), 1024),
            "chunked 8192": training(layer, kind.__call__, 8192),
        }
        print(f"\n{name}, forward and backward, batch {BATCH}")
        report(interleave(contenders, rounds=args.rounds), "chunked 1024")


if __name__ == "__main__":
    main()
