"""What the page of an analysis is made of, and what several sections need to draw."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from qkvflow.report.charts.description import Figure, Plot, Series, values
from qkvflow.report.charts.scales import axis
from qkvflow.report.palette import LIGHT


@dataclass(frozen=True)
class Numbers:
    """A plain table, on the page alone."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str


@dataclass(frozen=True)
class Section:
    name: str
    title: str
    lead: str
    """What this looks at, in one sentence."""
    parts: tuple[Figure | Numbers, ...]


def lines(
    title: str, x_label: str, y_label: str, series: Sequence[Series], *, log: bool = False
) -> Plot:
    """A panel of lines over t, or over what is counted; more than one line gets a legend."""
    dots = any(each.look == "dots" for each in series)
    seen = [v for each in series for v in (*each.y, *each.low, *each.high)]
    places = [v for each in series for v in each.x]
    x = axis(x_label, places, pad=0.02 if dots else 0.0, whole=x_label != "t")
    y = axis(y_label, seen, log=log, pad=0.08)
    return Plot(title, x, y, tuple(series), legend=len(series) > 1)


def line(name: str, index: int, x: Iterable, y: Iterable, look: str = "line") -> Series:
    return Series(name, index, values(x), values(y), look=look)


def bundle(x: np.ndarray, curves: np.ndarray, names: Sequence[str]) -> list[Series]:
    """`count depth` curves as lines: by name while colours last, beyond that thin with a median."""
    if len(curves) <= len(LIGHT):
        return [line(n, i, x, y) for i, (n, y) in enumerate(zip(names, curves, strict=True))]
    thin = [line(name, 0, x, y, "thin") for name, y in zip(names, curves, strict=True)]
    return [*thin, line("median", 1, x, np.median(curves, axis=0))]


def band(name: str, index: int, x: np.ndarray, seen: np.ndarray) -> Series:
    """`depth seq` values as their median and the range of the middle 80 %."""
    low, middle, high = (values(each) for each in np.quantile(seen, [0.1, 0.5, 0.9], axis=1))
    return Series(name, index, values(x), middle, low, high)


def visible(text: str) -> str:
    """A token as it can be seen: spaces and line breaks have a sign, long runs of them a count."""
    if not text:
        return "∅"
    signs = {" ": "␣", "\n": "⏎", "\t": "⇥"}
    runs = ((signs.get(c, c if c.isprintable() else "�"), len([*run])) for c, run in groupby(text))
    return "".join(f"{c}×{n}" if n > 3 and c in signs.values() else c * n for c, n in runs)
