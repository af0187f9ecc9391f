"""What a figure shows, as plain data that JSON can hold. Nothing here draws.

Sizes are in em, the size of a figure's text: 12 pixels on a page, `printed.EM` points on paper.
`index` is a place in the palette: it fixes colour, marker and dash.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkvflow.report.palette import DEPTH, LESS, LIGHT, MORE

Values = tuple[float | None, ...]
Tip = tuple[tuple[str, str], ...]
"""Lines of a tooltip: a name and a value."""


@dataclass(frozen=True)
class Ticks:
    """Places and texts of ticks, at every density; a renderer takes the densest that has room."""

    steps: tuple[tuple[float, int], ...] = ()
    """Of a linear axis: distance and decimals, coarse first."""
    divide: float = 1.0
    suffix: str = ""
    marks: tuple[tuple[tuple[float, str], ...], ...] = ()
    """Of a logarithmic axis, or ticks given by name: places with their text, dense first."""


@dataclass(frozen=True)
class View:
    """A part of an axis. `printed` views get a panel of their own on paper."""

    text: str
    low: float
    high: float
    levels: tuple[int | None, ...] = ()
    """How far above the frame each vertical rule has its name; None where there is no room."""
    printed: bool = False


@dataclass(frozen=True)
class Axis:
    label: str
    views: tuple[View, ...]
    """The first is shown until another one is chosen."""
    ticks: Ticks
    log: bool = False
    zero: bool = False
    """The axis starts at zero."""
    pad: float = 0.05
    """Share of the range that is left free at both ends."""
    digits: int | None = None
    """Decimals of a value under the pointer; None is three significant digits."""
    control: str = ""
    """What the choice of a view is called."""


@dataclass(frozen=True)
class Rule:
    """A line across the panel with a name, such as a baseline."""

    value: float
    name: str


@dataclass(frozen=True)
class Label:
    """Text beside a point, `dx` to the right of it and `dy` above."""

    text: str
    dx: float
    dy: float
    anchor: str
    """`start`, `middle` or `end`: the part of the text that stands there."""


@dataclass(frozen=True)
class Series:
    """Points with one name.

    `look` is `line`, `dots` (a line with markers), `points` (markers with intervals), `thin` (one
    of many lines), `front` (grey steps), `spots` or `path` (coloured by `depth`, a path joined).
    """

    name: str
    index: int
    x: Values
    y: Values
    low: Values = ()
    high: Values = ()
    look: str = "line"
    depth: Values = ()
    rings: tuple[int, ...] = ()
    """Points with a ring around them."""
    labels: tuple[Label | None, ...] = ()
    tips: tuple[Tip, ...] = ()
    members: tuple[str, ...] = ()
    """Of a front: which series each of its points belongs to."""


@dataclass(frozen=True)
class Plot:
    """Series in a plane."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    rules: tuple[Rule, ...] = ()
    height: float = 21.0
    equal: bool = False
    """One unit is as long on both axes."""
    crosshair: bool = False
    """The pointer shows every series at its place, not the nearest point."""
    ends: bool = False
    """Names stand at the ends of lines where there is room, in the order of the series."""
    legend: bool = False
    choice: tuple[tuple[str, str], ...] = ()
    """On a page the panel is shown when these options are chosen."""
    printed: bool = True


@dataclass(frozen=True)
class Row:
    """One row: dots for `values`, a bar from `low` to `high`, a line at the middle."""

    name: str
    index: int
    middle: float
    values: Values = ()
    low: float | None = None
    high: float | None = None
    note: str = ""
    tip: Tip = ()
    tips: tuple[Tip, ...] = ()


@dataclass(frozen=True)
class Rows:
    """One row for each name, over a common axis."""

    title: str
    x: Axis
    rows: tuple[Row, ...]
    rules: tuple[Rule, ...] = ()
    stems: bool = False
    """A line from zero to the middle."""
    key: str = ""
    """What dots, bars and lines are, for paper; on a page the caption says so."""


@dataclass(frozen=True)
class Heat:
    """`values` by row and column; the colour is the distance from the row's `middle`."""

    title: str
    x_label: str
    y_label: str
    x: Values
    values: tuple[Values, ...]
    middle: Values
    most: float
    note: str


@dataclass(frozen=True)
class Cell:
    """`lines` of text on a background: a verdict's `tint`, or a `shade` from 0 to 1."""

    lines: tuple[str, ...]
    tint: str = ""
    shade: float = 0.0
    bold: bool = False
    tip: str = ""


@dataclass(frozen=True)
class Grid:
    """A table of cells with names above and on the left; None is the diagonal."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    cells: tuple[tuple[Cell | None, ...], ...]
    corner: str = ""
    indices: tuple[int, ...] = ()
    """Colours of the names."""
    keys: tuple[tuple[str, str], ...] = ()
    """Tints and what they mean."""
    note: str = ""


@dataclass(frozen=True)
class Words:
    """Text, each piece on a background from 0 to 1."""

    pieces: tuple[str, ...]
    breaks: tuple[int, ...]
    """Pieces after which a line ends."""
    shades: Values
    tips: tuple[str, ...]
    marked: int
    ends: tuple[str, str]
    """What the weakest and the strongest background stand for."""
    title: str = ""


Panel = Plot | Rows | Heat | Grid | Words


@dataclass(frozen=True)
class Figure:
    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    columns: int = 3
    """Panels side by side, at most."""
    legend: bool = False
    """On paper one legend for all panels."""
    empty: str = ""
    """Why there are no panels."""

    @property
    def scripted(self) -> bool:
        """Whether a page draws it by script; tables and text are markup."""
        return any(isinstance(panel, Plot | Rows | Heat) for panel in self.panels)


def values(numbers: Iterable[Any]) -> Values:
    """Numbers with six digits: more cannot be seen. NaN and infinities are None."""
    array = np.asarray(numbers, dtype=float).ravel().tolist()
    return tuple(float(f"{each:.6g}") if np.isfinite(each) else None for each in array)


def to_json(content: Any) -> Any:
    """Dictionaries and lists; what is empty is left out, and panels say what `kind` they are."""
    if dataclasses.is_dataclass(content) and not isinstance(content, type):
        fields = {f.name: getattr(content, f.name) for f in dataclasses.fields(content)}
        kept = {k: to_json(v) for k, v in fields.items() if not _empty(v)}
        if isinstance(content, Plot | Rows | Heat | Grid | Words):
            kept["kind"] = type(content).__name__.lower()
        return kept
    if isinstance(content, tuple | list):
        return [to_json(each) for each in content]
    return content


def digest(figure: Figure) -> str:
    """Of what a figure shows, whoever draws it; a PNG says it as its comment."""
    return hashlib.sha256(json.dumps(_rounded(to_json(figure))).encode()).hexdigest()


def _rounded(content: Any) -> Any:
    """With six digits: the rest may differ between machines."""
    if isinstance(content, dict):
        return {key: _rounded(each) for key, each in content.items()}
    if isinstance(content, list):
        return [_rounded(each) for each in content]
    return f"{content:.6g}" if isinstance(content, float) else content


def page_data(figures: Iterable[Figure]) -> dict[str, Any]:
    """What the page's scripts draw from."""
    return {
        "colours": len(LIGHT),
        "depth": DEPTH,
        "around": [LESS, MORE],
        "figures": {each.name: to_json(each) for each in figures if each.scripted},
    }


def _empty(value: Any) -> bool:
    return value is None or value is False or value == () or value == ""
