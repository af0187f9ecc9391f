"""Schedule-free AdamW (Defazio et al. 2024), with weight decay on matrices alone.

Its own averaging takes the place of beta1; the mean it keeps is what is evaluated.
"""

import optax

from qkvflow.runs.sections import OptimConfig
from qkvflow.training.optimisers.base import matrices
from qkvflow.zoo.registry import OPTIMISERS


@OPTIMISERS.register("schedule-free")
def make_schedule_free(
    optim: OptimConfig, schedule: optax.Schedule
) -> optax.GradientTransformation:
    base = optax.adamw(
        schedule,
        b1=0.0,
        b2=optim.beta2,
        eps=optim.eps,
        weight_decay=optim.weight_decay,
        mask=matrices,
    )
    return optax.contrib.schedule_free(base, schedule, b1=optim.beta1)
