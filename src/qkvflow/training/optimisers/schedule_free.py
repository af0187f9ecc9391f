"""Schedule-free AdamW (Defazio et al. 2024), with weight decay on matrices alone.

Its own averaging takes the place of beta1; the mean it keeps is what is evaluated.
"""

import optax

from qkvflow.errors import UserError
from qkvflow.runs.sections import OptimConfig
from qkvflow.training.optimisers.base import matrices
from qkvflow.zoo.registry import OPTIMISERS


@OPTIMISERS.register("schedule-free")
def make_schedule_free(
    optim: OptimConfig, schedule: optax.Schedule
) -> optax.GradientTransformation:
    if not optim.beta1:
        raise UserError("schedule-free divides by optim.beta1; give one above 0, such as 0.9")
    base = optax.adamw(
        schedule,
        b1=0.0,
        b2=optim.beta2,
        eps=optim.eps,
        weight_decay=optim.weight_decay,
        mask=matrices,
    )
    return optax.contrib.schedule_free(base, schedule, b1=optim.beta1)
