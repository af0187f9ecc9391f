"""Spectra: magnitudes, the complex plane, spectral norms and effective ranks."""

import numpy as np

from qkvflow.report import numbers
from qkvflow.report.analysis.content import Content
from qkvflow.report.analysis.parts import Numbers, Section, bundle, lines
from qkvflow.report.analysis.sections import SECTIONS
from qkvflow.report.charts.description import Figure, Plot, Series, values
from qkvflow.report.charts.scales import axis

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
            lines(name, "t", unit, bundle(ts, each[key].T, _heads(each[key].shape[1])))
            for name, each in circuits.items()
        )
        parts.append(Figure(f"spectra_{key}", title, f"{caption} One line per head.", panels))
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
        parts.insert(1, Figure("spectra_plane", "The complex plane", caption, planes))
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
        "as linear maps, along depth. Why look: eigenvalues of OV with positive real part copy "
        "what is attended to, negative ones take it away; a low effective rank means that few "
        "directions are used.",
        tuple(parts),
    )


def _heads(count: int) -> list[str]:
    return [f"head {i + 1}" for i in range(count)] if count > 1 else ["all channels"]


def _cloud(name: str, ts: np.ndarray, eigenvalues: np.ndarray) -> Plot:
    depth, heads, modes = eigenvalues.shape
    # The largest of every depth and head: a choice at random would tear pairs apart.
    points = eigenvalues[..., : max(2, min(modes, MOST_POINTS // (depth * heads)))]
    re, im = values(np.real(points)), values(np.imag(points))
    t = values(np.broadcast_to(ts[:, None, None], points.shape))
    tips = tuple(
        ((_complex(a, b), f"t = {numbers.three(at or 0.0)}"),)
        for a, b, at in zip(re, im, t, strict=True)
    )
    spots = Series(name, 0, re, im, look="spots", depth=t, tips=tips)
    # A square: both axes as long as the longer one.
    ends = [(array.min(), array.max()) for array in (np.real(points), np.imag(points))]
    half = max(high - low for low, high in ends) / 2
    x, y = (
        axis(label, [(low + high) / 2 - half, (low + high) / 2 + half], pad=0.06)
        for label, (low, high) in zip(("Re λ", "Im λ"), ends, strict=True)
    )
    return Plot(name, x, y, (spots,), height=24.0, equal=True)


def _complex(re: float | None, im: float | None) -> str:
    if re is None or im is None:
        return numbers.ABSENT
    return f"{numbers.three(re)} {'−' if im < 0 else '+'} {numbers.three(abs(im))} i"


def _trend(rho: np.ndarray, p: np.ndarray) -> tuple[str, str]:
    if not np.isfinite(p):
        return numbers.ABSENT, numbers.ABSENT
    return numbers.signed(float(rho), 2), numbers.p_value(float(p))
