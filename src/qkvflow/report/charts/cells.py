"""Heat maps, grids and coloured text on paper."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from qkvflow.report.charts import description as d
from qkvflow.report.palette import LESS, LINE, MORE, PAPER, TINTS, colour

AROUND = LinearSegmentedColormap.from_list("around", [LESS, "#f4f4f4", MORE])
WIDEST = 24
"""Columns of a shaded grid in one row of the sheet."""
LINE_LENGTH = 78
"""Characters of shaded text in one line."""


def names(axes: Axes, which: str, places: Any, named: list[tuple[str, int]]) -> None:
    """Names of rows or columns, each in its colour."""
    each = axes.xaxis if which == "x" else axes.yaxis
    each.set_ticks(list(places), [name for name, _ in named])
    axes.tick_params(axis=which, length=0)  # type: ignore
    for text, (_, index) in zip(each.get_ticklabels(), named, strict=True):
        text.set(color=colour(index), fontweight="bold", fontsize=8)


def heat(axes: Axes, panel: d.Heat) -> None:
    away = np.array(panel.values, float) - np.array(panel.middle, float)[:, None]
    x = np.array(panel.x, float)
    low = x[0] - (x[1] - x[0] if len(x) > 1 else 1.0)
    limits = {"vmin": -panel.most, "vmax": panel.most, "cmap": AROUND}
    place = {"extent": (low, x[-1], len(away) + 0.5, 0.5), "aspect": "auto"}
    image = axes.imshow(away, interpolation="nearest", **limits, **place)
    axes.set_title(panel.title, fontsize=7.5)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.grid(visible=False)
    axes.get_figure(root=True).colorbar(image, ax=axes, shrink=0.8, aspect=18)  # type: ignore


def _shade(share: float) -> tuple[float, ...]:
    """From paper to the accent, and no darker than black text can stand on."""
    paper, ink = np.array(to_rgb(PAPER)), np.array(to_rgb(MORE))
    return tuple(paper + 0.75 * float(share) * (ink - paper))


def columns(grid: d.Grid, start: int) -> d.Grid:
    stop = start + WIDEST
    return replace(
        grid, columns=grid.columns[start:stop], cells=tuple(row[start:stop] for row in grid.cells)
    )


def shaded(axes: Axes, grid: d.Grid) -> None:
    _cells(axes, grid, lambda cell: _shade(cell.shade), size=5.5, longest=6)
    axes.set_xlim(0, WIDEST)
    axes.set_xticks(np.arange(len(grid.columns)) + 0.5, [c[:6] for c in grid.columns], fontsize=6)
    axes.set_yticks(np.arange(len(grid.rows)) + 0.5, grid.rows, fontsize=6)
    axes.set_ylabel(grid.corner)


def verdicts(axes: Axes, grid: d.Grid) -> None:
    _cells(axes, grid, lambda cell: TINTS.get(cell.tint, "white"), size=7.5)
    places = np.arange(len(grid.rows)) + 0.5
    for which, each in (("x", grid.columns), ("y", grid.rows)):
        names(axes, which, places, list(zip(each, grid.indices, strict=True)))
    for text in axes.get_xticklabels():
        text.set(rotation=35, ha="left")
    axes.set_title(grid.title, pad=12)
    axes.xaxis.set_label_position("bottom")
    axes.set_xlabel(grid.note, fontsize=7)


def _cells(
    axes: Axes,
    grid: d.Grid,
    tint: Callable[[d.Cell], Any],
    *,
    size: float,
    longest: int | None = None,
) -> None:
    for i, row in enumerate(grid.cells):
        for j, cell in enumerate(row):
            face = "#f3f4f6" if cell is None else tint(cell)
            edge = {"edgecolor": LINE, "linewidth": 0.6}
            axes.add_patch(Rectangle((j, i), 1, 1, facecolor=face, **edge))
            lines = cell.lines if cell is not None else ()
            for place, text in enumerate(lines):
                height = i + (0.5 if len(lines) == 1 else 0.36 + 0.36 * place)
                weight = "bold" if cell is not None and cell.bold and not place else "normal"
                font = {"fontsize": size if not place else 0.83 * size, "fontweight": weight}
                axes.text(j + 0.5, height, text[:longest], ha="center", va="center", **font)
    axes.set(xlim=(0, len(grid.columns)), ylim=(len(grid.rows), 0))
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def wrapped(pieces: tuple[str, ...]) -> list[list[tuple[int, int]]]:
    """Lines of (piece, the place of its first character)."""
    lines: list[list[tuple[int, int]]] = [[]]
    place = 0
    for index, piece in enumerate(pieces):
        if place + len(piece) > LINE_LENGTH and lines[-1]:
            lines.append([])
            place = 0
        lines[-1].append((index, place))
        place += len(piece)
    return lines


def words(axes: Axes, panel: d.Words) -> None:
    lines = wrapped(panel.pieces)
    axes.axis("off")
    axes.set(xlim=(0, LINE_LENGTH + 2), ylim=(len(lines) - 0.3, -0.7))
    for number, line in enumerate(lines):
        for index, start in line:
            edge = "black" if index == panel.marked else "none"
            box = {"facecolor": _shade(panel.shades[index] or 0.0), "edgecolor": edge}
            box |= {"linewidth": 0.8, "pad": 1.2}
            font = {"family": "monospace", "fontsize": 8, "va": "center"}
            axes.text(start, number, panel.pieces[index], bbox=box, **font)
