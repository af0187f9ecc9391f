"""Optimisers by name, with weight decay on matrices alone.

What counts as a matrix is decided by what an array does, not by how many axes it has: a stack
of per-layer biases has two axes and is not a matrix, a hypernetwork's map from a time embedding to
a bias has two and is one.
"""

from typing import Any

import optax

from qkvflow.blocks.base import AbstractWeights, map_by_path
from qkvflow.fields.hypernet import Generator
from qkvflow.fields.per_layer import PerLayer
from qkvflow.runs.config import OptimConfig
from qkvflow.training.trainable import trained_arrays


def optimiser(
    optim: OptimConfig, schedule: optax.Schedule, trainable: str = "all"
) -> optax.GradientTransformation:
    """Clipping by global norm, then the named optimiser at the schedule's learning rate.

    Arrays that `trainable` leaves out stay as they are, and nothing is kept for them.
    """
    clip = (
        optax.clip_by_global_norm(optim.max_grad_norm) if optim.max_grad_norm else optax.identity()
    )
    whole = optax.chain(clip, _named(optim, schedule))
    if trainable == "all":
        return whole
    return optax.partition(
        {True: whole, False: optax.set_to_zero()}, lambda params: trained_arrays(params, trainable)
    )


def _named(optim: OptimConfig, schedule: optax.Schedule) -> Any:
    betas: dict[str, Any] = {"b1": optim.beta1, "b2": optim.beta2}
    decay: dict[str, Any] = {"weight_decay": optim.weight_decay, "mask": matrices}
    if optim.name == "muon":
        # Muon has no bias towards small steps: its updates are as large as AdamW's.
        return optax.contrib.muon(
            schedule,
            beta=optim.beta1,
            eps=optim.eps,
            weight_decay=optim.weight_decay,
            adam_b1=optim.beta1,
            adam_b2=optim.beta2,
            muon_weight_dimension_numbers=_muon_axes,
            consistent_rms=0.2,
        )
    if optim.name == "schedule-free":
        # Its own averaging takes the place of b1; the mean it keeps is what is evaluated.
        base = optax.adamw(schedule, b1=0.0, b2=optim.beta2, eps=optim.eps, **decay)
        return optax.contrib.schedule_free(base, schedule, b1=optim.beta1)
    if optim.name == "lion":
        return optax.lion(schedule, **betas, **decay)
    if optim.name == "sgd":
        return optax.chain(
            optax.add_decayed_weights(optim.weight_decay, matrices),
            optax.sgd(schedule, momentum=optim.beta1 or None),
        )
    return optax.adamw(schedule, **betas, eps=optim.eps, **decay)


def evaluation_params(optim: OptimConfig, opt_state: Any, params: Any) -> Any:
    """The weights to evaluate and keep: the parameters, or schedule-free's running mean."""
    if optim.name != "schedule-free":
        return params
    return optax.contrib.schedule_free_eval_params(opt_state[1], params)


def matrices(params: Any) -> Any:
    """True for every array that is used as a matrix: the ones that decay."""
    return map_by_path(params, _is_matrix)


def _muon_axes(params: Any) -> Any:
    """Muon's axes for the blocks' matrices, None (AdamW) for everything else."""

    def axes(nodes: list[Any], names: list[Any], leaf: Any) -> Any:
        group = nodes[-1]
        if not isinstance(group, AbstractWeights) or group.roles[names[-1]] != "matrix":
            return None
        if any(isinstance(node, Generator) for node in nodes):
            return None
        return optax.contrib.MuonDimensionNumbers(leaf.ndim - 2, leaf.ndim - 1)

    return map_by_path(params, axes)


def _is_matrix(nodes: list[Any], names: list[Any], leaf: Any) -> bool:
    """By the chain of nodes above an array and the name of the step taken from each."""
    pairs = list(zip(nodes, names, strict=True))
    if any(isinstance(node, Generator) and name == "maps" for node, name in pairs):
        return True
    group = nodes[-1]
    if isinstance(group, AbstractWeights):
        return group.roles[names[-1]] in ("matrix", "kernel")
    stacked = sum(isinstance(node, PerLayer) and name == "layers" for node, name in pairs)
    return leaf.ndim - stacked >= 2
