"""Stochastic gradient descent with momentum, with weight decay on matrices alone."""

import optax

from qkvflow.runs.sections import OptimConfig
from qkvflow.training.optimisers.base import matrices
from qkvflow.zoo.registry import OPTIMISERS


@OPTIMISERS.register("sgd")
def make_sgd(optim: OptimConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.chain(
        optax.add_decayed_weights(optim.weight_decay, matrices),
        optax.sgd(schedule, momentum=optim.beta1 or None),
    )
