"""AdamW (Loshchilov and Hutter 2019), with weight decay on matrices alone."""

import optax

from qkvflow.runs.sections import OptimConfig
from qkvflow.training.optimisers.base import matrices, mup_power
from qkvflow.zoo.registry import OPTIMISERS


@OPTIMISERS.register("adamw")
@mup_power(1.0)
def make_adamw(optim: OptimConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.adamw(
        schedule,
        b1=optim.beta1,
        b2=optim.beta2,
        eps=optim.eps,
        weight_decay=optim.weight_decay,
        mask=matrices,
    )
