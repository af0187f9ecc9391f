"""Spectra: magnitudes, the complex plane, spectral norms and effective ranks."""

import numpy as np

from qkvflow.report import numbers
from qkvflow.report.analysis.charts import (
    Cloud,
    LinePanel,
    Lines,
    Numbers,
    Plane,
    Section,
    bundle,
)
from qkvflow.report.analysis.content import Content
from qkvflow.report.analysis.sections import SECTIONS

MOST_POINTS = 1500
"""In one panel of the complex plane: more are a smear, and the weight of the page."""

_LINES = (
    ("magnitude", "Magnitude against depth", "mean |λ|", "Mean magnitude of the eigenvalues."),
    ("spectral_norm", "Spectral norm against depth", "largest σ", "The largest singular value."),
    (
        "effective_rank",
        "Effective rank against depth",
        "effective rank",
        "exp of the entropy of the singular values: how many directions carry the map.",
    ),
)


@SECTIONS.register("spectra")
def section(content: Content) -> Section:
    arrays = content.arrays("spectra")
    ts, circuits = arrays["ts"], content.groups("spectra", "circuits")
    parts = []
    for key, title, unit, caption in _LINES:
        panels = tuple(
            LinePanel(name, bundle(ts, each[key].T, _heads(each[key].shape[1])))
            for name, each in circuits.items()
        )
        parts.append(
            Lines(f"spectra_{key}", title, f"{caption} One line per head.", "t", unit, panels)
        )
    planes = tuple(
        _cloud(name, ts, each["eigenvalues"])
        for name, each in circuits.items()
        if each["eigenvalues"].size
    )
    if planes:
        caption = (
            "Eigenvalues at every depth and head, coloured by t; of very many, the largest. Off "
            "the axis: a pair that turns."
        )
        plane = Plane("spectra_plane", "The complex plane", caption, "Re λ", "Im λ", planes)
        parts.insert(1, plane)
    rows = tuple(
        (
            name,
            *_trend(each["growth/rho"], each["growth/p"]),
            *_trend(each["growth_of_norm/rho"], each["growth_of_norm/p"]),
        )
        for name, each in circuits.items()
    )
    parts.append(
        Numbers(
            "Rank correlation with depth",
            ("Circuit", "magnitude: rho", "p", "norm: rho", "p"),
            rows,
            "Spearman's, over the model's own grid points, of means over heads; p is two-sided, "
            "exact up to eight depths, and not corrected for the number of circuits.",
        )
    )
    return Section(
        "spectra",
        "Spectra",
        "Eigenvalues and singular values of what attention heads and channel mixers do to a state, "
        "as linear maps, along depth.",
        tuple(parts),
    )


def _heads(count: int) -> list[str]:
    return [f"head {i + 1}" for i in range(count)] if count > 1 else ["all channels"]


def _cloud(name: str, ts: np.ndarray, values: np.ndarray) -> Cloud:
    depth, heads, modes = values.shape
    # The largest of every depth and head: a choice at random would tear pairs apart.
    points = values[..., : max(2, min(modes, MOST_POINTS // (depth * heads)))]
    t = np.broadcast_to(ts[:, None, None], points.shape)
    return Cloud(name, np.real(points).ravel(), np.imag(points).ravel(), t.ravel())


def _trend(rho: np.ndarray, p: np.ndarray) -> tuple[str, str]:
    if not np.isfinite(p):
        return numbers.ABSENT, numbers.ABSENT
    return numbers.signed(float(rho), 2), numbers.p_value(float(p))
