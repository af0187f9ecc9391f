"""Muon (Jordan 2024) on the matrices that blocks are made of, AdamW on everything else.

The momentum of a matrix is orthogonalised by Newton-Schulz iterations; of a stack (layers,
coefficients of a basis) each matrix by itself. Updates are scaled to be as large as AdamW's (Liu et
al. 2025), so that one learning rate serves both.

Embeddings, positions, the head, gates, time embeddings and the maps of generators are matrices, but
not ones that carry states from layer to layer: AdamW, with decay. Biases, norms and other vectors:
AdamW, without. `optax.contrib.muon` has AdamW inside, but decays all of its arrays or none.
"""

from typing import Any

import jax
import optax

from qkvflow.runs.sections import OptimConfig
from qkvflow.training.optimisers.adamw import make_adamw
from qkvflow.training.optimisers.base import kinds, mup_power
from qkvflow.zoo.registry import OPTIMISERS


@OPTIMISERS.register("muon")
@mup_power(0.5)
def make_muon(optim: OptimConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    muon = optax.contrib.muon(
        schedule,
        beta=optim.beta1,
        eps=optim.eps,
        weight_decay=optim.weight_decay,
        muon_weight_dimension_numbers=_last_two_axes,
        consistent_rms=0.2,
    )
    adamw = make_adamw(optim, schedule)
    return optax.partition({"block matrix": muon, "matrix": adamw, "vector": adamw}, kinds)


def _last_two_axes(params: Any) -> Any:
    return jax.tree.map(
        lambda leaf: optax.contrib.MuonDimensionNumbers(leaf.ndim - 2, leaf.ndim - 1), params
    )
