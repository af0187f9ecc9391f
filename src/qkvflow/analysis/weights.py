"""Weights as functions of depth: how they look, how much they vary, and what shape that has.

Of a time-indexed (gated) field these are its gates and what else depends on t; of any other, every
array of the block. For an array w(t) with M depths and entries as one long vector,

    variation   sum_i |w(t_{i+1}) - w(t_i)| / mean |w|: the total variation, in units of its size
    constant    the root mean square distance from the best constant, as a share of the size
    linear      of that distance, what is left by the best a + b t
    periodic    and by the best a + b cos 2 pi m t + c sin 2 pi m t, m = 1, 2 or 3

What is left is corrected for the parameters of the fit (as adjusted R^2 is), so that a shape which
explains nothing leaves about 1, however few depths there are. NaN: nothing varies, or there are
too few depths.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Float

from qkvflow.analysis.base import AbstractResult, Analysis, Subject, check_depths, depths_of
from qkvflow.fields import Gated
from qkvflow.fields.gated import Gates
from qkvflow.lm import LanguageModel
from qkvflow.zoo.registry import ANALYSES

SHOWN = 64
"""Entries of an array that are kept for its heat map, spread evenly over it."""
STILL = 1e-6
"""Relative variation below which an array does not depend on depth."""
PERIODS = (1, 2, 3)


@dataclass(frozen=True)
class Curve:
    """One array along depth."""

    values: Float[np.ndarray, "depth entries"]
    """At most `SHOWN` of its entries."""
    entries: int
    mean_size: float
    """Root mean square of all entries over all depths."""
    variation: float
    constant: float
    linear: float
    periodic: float
    cycles: int
    """The m of the best periodic fit; 0 where there is none."""


@dataclass(frozen=True)
class WeightsOverDepth(AbstractResult):
    """How the arrays of a block change along depth."""

    ts: Float[np.ndarray, " depth"]
    curves: dict[str, Curve]

    def findings(self) -> list[str]:
        moving = {name: each for name, each in self.curves.items() if each.constant > STILL}
        if not moving:
            return ["The weights are the same at every depth."]
        by_change = sorted(moving, key=lambda name: -moving[name].constant)
        first = moving[by_change[0]]
        said = [
            f"{len(moving)} of {len(self.curves)} arrays depend on depth; most of all "
            f"{by_change[0]}, whose distance from a constant is {first.constant:.0%} of its size."
        ]
        linear = np.array([each.linear for each in moving.values()])
        periodic = np.array([each.periodic for each in moving.values()])
        if np.isfinite(linear).any():
            left = float(np.nanmedian(linear))
            said.append(f"A straight line in t leaves {left:.0%} of that variation (median).")
        if np.isfinite(periodic).any():
            left = float(np.nanmedian(periodic))
            said.append(f"One sine and cosine leave {left:.0%} of it (median).")
        return said


def weights_over_depth(
    model: LanguageModel, ts: Float[np.ndarray, " depth"] | None = None
) -> WeightsOverDepth:
    """At the depths `ts`: by default the model's grid, refined where the field is continuous."""
    ts = depths_of(model) if ts is None else np.asarray(ts, np.float32)
    check_depths(model, ts, "the weights analysis")
    return WeightsOverDepth(ts, {name: curve(ts, each) for name, each in _arrays(model.field, ts)})


def curve(ts: Float[np.ndarray, " depth"], array: Float[np.ndarray, "depth ..."]) -> Curve:
    w = array.reshape(len(ts), -1).astype(np.float64)
    depth, entries = w.shape
    shown = w[:, np.unique(np.linspace(0, entries - 1, min(entries, SHOWN)).astype(int))]
    size = float(np.sqrt(np.mean(w**2)))
    steps = np.linalg.norm(np.diff(w, axis=0), axis=1).sum()
    lengths = np.linalg.norm(w, axis=1).mean()
    away = _left(w, np.ones((depth, 1)))
    constant = away / size if size > 0 else 0.0
    t = ts.astype(np.float64)
    one = np.ones(depth)
    linear, periodic, cycles = float("nan"), float("nan"), 0
    if constant > STILL:
        linear = _left(w, np.stack([one, t], 1)) / away
        turns = {
            m: _left(w, np.stack([one, np.cos(2 * np.pi * m * t), np.sin(2 * np.pi * m * t)], 1))
            for m in PERIODS
            if depth > 2 * m + 1
        }
        if turns:
            cycles = min(turns, key=lambda m: turns[m])
            periodic = turns[cycles] / away
    variation = float(steps / lengths) if lengths > 0 else 0.0
    return Curve(shown, entries, size, variation, constant, linear, periodic, cycles)


def _left(w: np.ndarray, shapes: np.ndarray) -> float:
    """Root mean square of what a fit of these shapes leaves, per degree of freedom."""
    depth, count = shapes.shape
    if depth <= count:
        return float("nan") if count > 1 else 0.0
    basis = np.linalg.qr(shapes)[0]
    rest = w - basis @ (basis.T @ w)
    return float(np.sqrt(np.sum(rest**2) / ((depth - count) * w.shape[1])))


def _arrays(field: Any, ts: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Arrays along depth, by name. Where a gate does the varying, the gate is what is shown."""
    if not isinstance(field, Gated):
        yield from _named(field.stack(ts))
        return
    features = field.features(ts)
    gates, _ = jax.tree_util.tree_flatten_with_path(
        field.gates, is_leaf=lambda x: isinstance(x, Gates)
    )
    for path, group in gates:
        for name, gate in group.by_name.items():
            yield f"gate of {_dotted(path)}.{name}", np.asarray(gate(features))
    for name, array in _named(field.base.stack(ts)):
        # The base of a gated weight is shared; only what is generated depends on depth.
        if np.ptp(array, axis=0).max(initial=0.0) > 0.0:
            yield name, array


def _named(blocks: Any) -> Iterator[tuple[str, np.ndarray]]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(blocks)
    for path, leaf in leaves:
        yield _dotted(path), np.asarray(leaf)


def _dotted(path: Any) -> str:
    """`branches.0.mixer.qkv.weight` as `0.qkv.weight`: a name that fits beside a figure."""
    name = jax.tree_util.keystr(path, simple=True, separator=".")
    return name.replace("branches.", "").replace("mixer.", "")


@ANALYSES.register("weights")
class WeightsAnalysis(Analysis):
    order: ClassVar[int] = 40

    def run(self, subject: Subject) -> AbstractResult:
        return weights_over_depth(subject.model)

    def lacks(self, model: LanguageModel) -> str | None:
        return None
