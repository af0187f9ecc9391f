"""The optimiser of a run: clipping, the named optimiser, and the arrays that are left out."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from qkvflow.errors import UserError
from qkvflow.runs.sections import OptimConfig
from qkvflow.training.optimisers.base import matrices, width_scales
from qkvflow.training.trainable import trained_arrays
from qkvflow.zoo.registry import OPTIMISERS

__all__ = ["averages", "evaluation_params", "matrices", "optimiser"]


def optimiser(
    optim: OptimConfig,
    schedule: optax.Schedule,
    trainable: str = "all",
    width_ratio: float | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Clipping by global norm, then the named optimiser at the schedule's learning rate.

    `width_ratio` is that of a model under mup, whose updates depend on the width. Arrays that
    `trainable` leaves out stay as they are, and nothing is kept for them.
    """
    clip = clip_by_global_norm(optim.max_grad_norm) if optim.max_grad_norm else optax.identity()
    whole = optax.chain(clip, OPTIMISERS[optim.name](optim, schedule))
    if width_ratio is not None:
        whole = optax.chain(whole, _by_width(optim.name, width_ratio))
    if trainable == "all":
        return optax.with_extra_args_support(whole)
    return optax.partition(
        {True: whole, False: optax.set_to_zero()}, lambda params: trained_arrays(params, trainable)
    )


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformationExtraArgs:
    """As optax's, as one factor that the update multiplies by on the way: no clipped gradients are
    written. `update` takes the `norm` of the gradients where the caller has it."""

    def update(updates: Any, state: Any, params: Any = None, *, norm: Any = None, **_: Any) -> Any:
        norm = optax.tree.norm(updates) if norm is None else norm
        factor = jnp.where(norm < max_norm, 1.0, max_norm / norm)
        return jax.tree.map(lambda g: (g * factor).astype(g.dtype), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def _by_width(name: str, ratio: float) -> optax.GradientTransformation:
    power = getattr(OPTIMISERS[name], "mup_power", None)
    if power is None:
        raise UserError(
            f"parametrization mup has no rule for optim.name {name}; choose adamw, lion or muon"
        )

    def scale(updates: Any, params: Any) -> Any:
        return jax.tree.map(lambda u, s: u * s, updates, width_scales(params, ratio, power))

    return optax.stateless(scale)


def evaluation_params(optim: OptimConfig, opt_state: Any, params: Any) -> Any:
    """The weights to evaluate and keep: the parameters, or the running mean of an optimiser that
    keeps one. Arrays that are not trained have none, and are themselves."""
    for state in _means(opt_state):
        trained = jax.tree.map(
            lambda mean, own: mean if _is_masked(mean) else own,
            state.z,
            params,
            is_leaf=_is_masked,
        )
        mean = optax.contrib.schedule_free_eval_params(state, trained)
        return jax.tree.map(
            lambda mean, own: own if _is_masked(mean) else mean, mean, params, is_leaf=_is_masked
        )
    return params


def averages(opt_state: Any) -> bool:
    """Whether the weights to evaluate are a mean that the optimiser keeps."""
    return bool(_means(opt_state))


def _means(opt_state: Any) -> list[optax.contrib.ScheduleFreeState]:
    found = jax.tree.leaves(opt_state, is_leaf=_keeps_a_mean)
    return [state for state in found if _keeps_a_mean(state)]


def _is_masked(leaf: Any) -> bool:
    return isinstance(leaf, optax.MaskedNode)


def _keeps_a_mean(state: Any) -> bool:
    return isinstance(state, optax.contrib.ScheduleFreeState)
