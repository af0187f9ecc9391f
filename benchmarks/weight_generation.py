"""Tong et al.'s model with its weights made before the scan, beside the same made inside it.

    python -m benchmarks.weight_generation [--rounds 5]

`inside` does what the published code does: every layer calls its generators in the body of the
scan, which rematerialisation runs again in the backward pass. The losses are checked to agree.
"""

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.timing import interleave, report
from qkvflow import LanguageModel, build, loss
from qkvflow.blocks.base import Block
from qkvflow.schemes.base import AbstractScheme, ApplyBranch, FieldLike, Hidden, Solution
from qkvflow.schemes.euler import Parallel
from qkvflow.schemes.parts.grid import grid


class GeneratesInside(AbstractScheme):
    """Parallel Euler steps whose weights are made in each step."""

    step: ClassVar = Parallel()

    def integrate(
        self,
        field: FieldLike,
        x: Hidden,
        *,
        num_steps: int,
        horizon: float,
        make_apply: Callable[[Any], ApplyBranch],
        per_step: Any = None,
        prepare: Callable[[Block], Block] = lambda block: block,
        remat: str = "none",
        save: bool = False,
        edges: Any = None,
    ) -> Solution:
        @jax.checkpoint
        def body(x: Hidden, t: Any) -> tuple[Hidden, None]:
            return self.step.step((field.at(t),), x, horizon / num_steps, make_apply(None)), None

        end, _ = jax.lax.scan(body, x, jnp.asarray(grid(num_steps)))
        return Solution(end, None, None, num_steps)


def contender(model: LanguageModel) -> tuple[Callable[[], None], Callable[[], float]]:
    params, static = eqx.partition(model, eqx.is_inexact_array)
    optim = optax.adamw(3e-4)
    tokens = jax.random.randint(jax.random.key(1), (8, 129), 0, 256)

    def objective(params: Any) -> Any:
        return loss(eqx.combine(params, static), tokens[:, :-1], tokens[:, 1:])

    def step(params: Any, opt_state: Any) -> Any:
        value, grads = jax.value_and_grad(objective)(params)
        updates, opt_state = optim.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    run = jax.jit(step, donate_argnums=(0, 1))
    first = float(jax.jit(objective)(params))
    state = [*jax.tree.map(jnp.copy, (params, optim.init(params)))]

    def call() -> None:
        *state[:], value = run(*state)
        value.block_until_ready()

    return call, lambda: first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    model = build("tong", vocab_size=256, key=jax.random.key(0), context=128)
    before, first_before = contender(model)
    inside, first_inside = contender(dataclasses.replace(model, scheme=GeneratesInside()))
    assert np.isclose(first_before(), first_inside(), rtol=1e-5), "the two do not agree"
    report(interleave({"before": before, "inside": inside}, rounds=args.rounds), "before")


if __name__ == "__main__":
    main()
