"""Trained models at other depths: the same weights on another grid, or under an adaptive solver.

A solver that runs out of steps leaves a state of some depth before the end; the loss of that is
nobody's, and is not written.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from qkvflow.evaluation.losses import Evaluator, evaluation_batch
from qkvflow.evaluation.sweep import count_work
from qkvflow.experiment.ensemble import Ensemble
from qkvflow.schemes import make_scheme
from qkvflow.training.step import split_model

TOKENS = 65536
"""Validation tokens of each of these evaluations, in windows spread evenly. The test split is kept
for the one evaluation that a run is judged by."""


def evaluate_depths(
    ensemble: Ensemble, params: Sequence[Any], depths: Sequence[str]
) -> list[list[dict[str, Any]]]:
    """For each run's parameters: `{num_steps, scheme, nats, split}` at N and at every depth.

    `nats` is None where the solver did not arrive.
    """
    config = ensemble.config
    shape, encoded = config.model.config, ensemble.encoded
    found: list[list[dict[str, Any]]] = [[] for _ in params]
    params = [jax.tree.map(jnp.asarray, each) for each in params]
    for depth in dict.fromkeys(["1", *depths]):
        steps, scheme = shape.num_steps, None
        if depth == "adaptive":
            scheme = make_scheme("adaptive", tolerance=shape.tolerance)
        else:
            steps = max(1, round(float(depth) * shape.num_steps))
        changed = eqx.combine(params[0], ensemble.static).at_depth(steps, scheme)
        batch_size = evaluation_batch(config.context, encoded.tokenizer.vocab_size)
        evaluator = Evaluator(
            split_model(changed)[1],
            encoded.validation,
            context=config.context,
            batch_size=batch_size,
            max_tokens=TOKENS,
        )
        for each, mine in zip(params, found, strict=True):
            model = eqx.combine(each, ensemble.static).at_depth(steps, scheme)
            arrives = (
                scheme is None
                or count_work(model, encoded.validation, batch_size, TOKENS, batches=1)[1]
            )
            mine.append(
                {
                    "num_steps": None if depth == "adaptive" else steps,
                    "scheme": "adaptive" if depth == "adaptive" else shape.scheme,
                    "nats": evaluator(split_model(model)[0]).nats if arrives else None,
                    "split": "validation",
                }
            )
    return found
