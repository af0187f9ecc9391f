"""Lion (Chen et al. 2023), with weight decay on matrices alone."""

import optax

from qkvflow.runs.sections import OptimConfig
from qkvflow.training.optimisers.base import matrices, mup_power
from qkvflow.zoo.registry import OPTIMISERS


@OPTIMISERS.register("lion")
@mup_power(1.0)
def make_lion(optim: OptimConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.lion(
        schedule,
        b1=optim.beta1,
        b2=optim.beta2,
        weight_decay=optim.weight_decay,
        mask=matrices,
    )
