"""Eigenvalues and singular values of the circuits of a block, along depth.

Eigenvalues are complex: a pair that turns is not a pair that grows. The *magnitude* of a circuit is
the mean of |lambda| over its modes, its *spectral norm* the largest singular value, its *effective
rank* exp(entropy of the singular values, normalised to sum to 1) (Roy and Vetterli 2007).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Complex, Float

from qkvflow.analysis.base import (
    AbstractResult,
    Analysis,
    Subject,
    check_depths,
    depths_of,
    own_depths,
)
from qkvflow.analysis.parts.circuits import Circuit, circuits_of
from qkvflow.analysis.parts.trend import Trend, trend
from qkvflow.lm import LanguageModel
from qkvflow.zoo.registry import ANALYSES

PerHead = Float[np.ndarray, "depth heads"]


@dataclass(frozen=True)
class Spectrum:
    """Of one circuit, for every depth and head; modes in falling order of size."""

    eigenvalues: Complex[np.ndarray, "depth heads modes"]
    """None of them (`modes` 0) where the map is not from a space to itself."""
    singular_values: Float[np.ndarray, "depth heads values"]
    magnitude: PerHead
    spectral_norm: PerHead
    effective_rank: PerHead
    growth: Trend
    """Of the magnitude, averaged over heads, on the model's own grid."""
    growth_of_norm: Trend
    """Of the spectral norm, likewise."""


@dataclass(frozen=True)
class Spectra(AbstractResult):
    """Eigenvalues and singular values of a block's circuits over depth."""

    ts: Float[np.ndarray, " depth"]
    circuits: dict[str, Spectrum]

    def findings(self) -> list[str]:
        tests = len(self.circuits)
        said = []
        for name, each in self.circuits.items():
            what = "eigenvalue magnitudes" if each.eigenvalues.size else "singular values"
            said.append(f"{name}: {what} {each.growth.verdict(tests)} ({each.growth.numbers()}).")
        if tests > 1:
            said.append(f"A trend counts where p ≤ 0.05 / {tests}, for {tests} circuits.")
        return said


def spectra(model: LanguageModel, ts: Float[np.ndarray, " depth"] | None = None) -> Spectra:
    """At the depths `ts`: by default the model's grid, refined where the field is continuous."""
    ts = depths_of(model) if ts is None else np.asarray(ts, np.float32)
    own = own_depths(ts, model.num_steps)
    check_depths(model, ts, "the spectra analysis", doubles=1)
    circuits = circuits_of(model.field.stack(ts))
    return Spectra(ts, {name: _spectrum(ts, own, each) for name, each in circuits.items()})


def _spectrum(ts: np.ndarray, own: np.ndarray, circuit: Circuit) -> Spectrum:
    values, singular = eigenvalues(circuit), singular_values(circuit)
    # A map between different spaces has no eigenvalues; its singular values stand for them.
    magnitude = np.abs(values if values.size else singular).mean(-1)
    norm = singular[..., 0]
    return Spectrum(
        values,
        singular,
        magnitude,
        norm,
        effective_rank(singular),
        trend(ts[own], magnitude.mean(1)[own]),
        trend(ts[own], norm.mean(1)[own]),
    )


def eigenvalues(circuit: Circuit) -> Complex[np.ndarray, "depth heads modes"]:
    left, right = circuit
    if left.shape[-2] != right.shape[-1]:
        return np.zeros((*left.shape[:2], 0), np.complex128)
    small = right @ left if right.shape[-2] < left.shape[-2] else left @ right
    found = np.linalg.eigvals(small).astype(np.complex128)
    return np.take_along_axis(found, np.argsort(-np.abs(found), axis=-1), axis=-1)


def singular_values(circuit: Circuit) -> Float[np.ndarray, "depth heads values"]:
    left, right = circuit
    if right.shape[-2] >= min(left.shape[-2], right.shape[-1]):
        return np.linalg.svd(left @ right, compute_uv=False)
    # Left is Q_1 R_1 and right is (Q_2 R_2)^T: the values are those of R_1 R_2^T, which is small.
    small = [np.linalg.qr(each, mode="r") for each in (left, np.swapaxes(right, -1, -2))]
    return np.linalg.svd(small[0] @ np.swapaxes(small[1], -1, -2), compute_uv=False)


def effective_rank(singular: Float[np.ndarray, "*batch values"]) -> Float[np.ndarray, "*batch"]:
    total = singular.sum(-1, keepdims=True)
    share = np.divide(singular, total, out=np.zeros_like(singular), where=total > 0)
    logs = np.log(share, out=np.zeros_like(share), where=share > 0)
    return np.exp(-(share * logs).sum(-1))


@ANALYSES.register("spectra")
class SpectraAnalysis(Analysis):
    order: ClassVar[int] = 10

    def run(self, subject: Subject) -> AbstractResult:
        return spectra(subject.model)

    def lacks(self, model: LanguageModel) -> str | None:
        return None
