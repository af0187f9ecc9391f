"""Weights over depth: heat maps of what varies most, and what shape that has."""

import numpy as np

from qkvflow.report import numbers
from qkvflow.report.analysis.content import Content
from qkvflow.report.analysis.parts import Numbers, Section
from qkvflow.report.analysis.sections import SECTIONS
from qkvflow.report.charts.description import Figure, Heat, values

SHOWN = 9
"""Heat maps: of the arrays that are furthest from constant."""


@SECTIONS.register("weights")
def section(content: Content) -> Section:
    ts = content.arrays("weights")["ts"]
    curves = content.groups("weights", "curves")
    order = sorted(curves, key=lambda name: -float(curves[name]["constant"]))
    panels = tuple(_heat(name, curves[name]["values"].T, ts) for name in order[:SHOWN])
    more = len(order) - len(panels)
    rows = tuple(_row(name, curves[name]) for name in order)
    return Section(
        "weights",
        "Weights over depth",
        "Gates of a time-indexed field, or the weights themselves, as functions of t. Why look: to "
        "see whether depth is used at all. An array that hardly varies is shared in effect.",
        (
            Figure(
                "weights_heat",
                "Heat maps",
                "Each row is an entry of the array (up to 64, spread evenly over it), each column "
                "a depth; less than the entry's mean over depth is blue, more is orange."
                + (f" {more} arrays that vary less are in the table alone." if more > 0 else ""),
                panels,
            ),
            Numbers(
                "How far from constant, from linear, from periodic",
                ("Array", "Entries", "Size", "Total variation", "Constant", "Linear", "Periodic"),
                rows,
                "Size is the root mean square. Total variation is in units of the size. Constant: "
                "distance from the best constant, as a share of the size. Linear and periodic: of "
                "that distance, what the best straight line in t, and the best sine and cosine, "
                "leave: 0 % is that shape exactly, about 100 % is no better than a constant.",
            ),
        ),
    )


def _heat(name: str, array: np.ndarray, ts: np.ndarray) -> Heat:
    """`entries depth`."""
    middle = array.mean(1)
    most = float(np.abs(array - middle[:, None]).max()) or 1.0
    note = f"entry × t from {ts[0]:.2g} to {ts[-1]:.2g}; ± {numbers.three(most)}"
    rows = tuple(values(row) for row in array)
    return Heat(name, "t", "entry", values(ts), rows, values(middle), most, note)


def _row(name: str, curve: dict[str, np.ndarray]) -> tuple[str, ...]:
    cycles = int(curve["cycles"])
    periodic = _share(curve["periodic"])
    return (
        name,
        f"{int(curve['entries']):,}",
        numbers.three(float(curve["mean_size"])),
        numbers.three(float(curve["variation"])),
        _share(curve["constant"]),
        _share(curve["linear"]),
        f"{periodic} ({cycles} {'cycle' if cycles == 1 else 'cycles'})" if cycles else periodic,
    )


def _share(value: np.ndarray) -> str:
    return f"{100 * float(value):.0f} %" if np.isfinite(value) else numbers.ABSENT
