"""Charts as data: what the page's script and the printed figures both draw from."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from qkvflow.report.palette import LIGHT


@dataclass(frozen=True)
class Series:
    """One line; `faint` ones are drawn thin and have no name of their own."""

    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    faint: bool = False


@dataclass(frozen=True)
class LinePanel:
    title: str
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Lines:
    name: str
    title: str
    caption: str
    x_label: str
    y_label: str
    panels: tuple[LinePanel, ...]
    log: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Cloud:
    """Points coloured by depth; `paths` joins the points of each row."""

    title: str
    x: np.ndarray
    y: np.ndarray
    t: np.ndarray
    """All three `points`, or `paths depth` where they are joined."""
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plane:
    name: str
    title: str
    caption: str
    x_label: str
    y_label: str
    panels: tuple[Cloud, ...]
    equal: bool = True


@dataclass(frozen=True)
class HeatPanel:
    title: str
    values: np.ndarray
    """`entries depth`."""
    t: np.ndarray


@dataclass(frozen=True)
class Heat:
    name: str
    title: str
    caption: str
    y_label: str
    panels: tuple[HeatPanel, ...]


@dataclass(frozen=True)
class Words:
    """Text, each piece with a background."""

    name: str
    title: str
    caption: str
    pieces: tuple[str, ...]
    values: np.ndarray
    shades: np.ndarray
    """From 0 to 1."""
    marked: int
    unit: str


@dataclass(frozen=True)
class Cells:
    """A table of words, each with a background."""

    name: str
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    texts: np.ndarray
    shades: np.ndarray


Chart = Lines | Plane | Heat | Words | Cells


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
    parts: tuple[Chart | Numbers, ...]


def bundle(x: np.ndarray, curves: np.ndarray, names: Sequence[str]) -> tuple[Series, ...]:
    """`count depth` curves as lines: by name while colours last, beyond that thin with a median."""
    if len(curves) <= len(LIGHT):
        return tuple(Series(name, x, y) for name, y in zip(names, curves, strict=True))
    thin = tuple(Series(name, x, y, faint=True) for name, y in zip(names, curves, strict=True))
    return (*thin, Series("median", x, np.median(curves, axis=0)))


def band(name: str, x: np.ndarray, values: np.ndarray) -> Series:
    """`depth seq` values as their median and the range of the middle 80 %."""
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9], axis=1)
    return Series(name, x, middle, low, high)


def visible(text: str) -> str:
    """A token as it can be seen: spaces and line breaks have a sign, long runs of them a count."""
    if not text:
        return "∅"
    signs = {" ": "␣", "\n": "⏎", "\t": "⇥"}
    runs = ((signs.get(c, c if c.isprintable() else "�"), len([*run])) for c, run in groupby(text))
    return "".join(f"{c}×{n}" if n > 3 and c in signs.values() else c * n for c, n in runs)


def plain(value: Any) -> Any:
    """What JSON takes, with five digits: more cannot be seen. NaN and infinities are None."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, float):
        return float(f"{value:.5g}") if np.isfinite(value) else None
    return value
