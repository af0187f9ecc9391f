"""Charts for print: the same data as on the page, drawn by matplotlib."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from qkvflow.report.analysis.charts import Cells, Chart, Heat, Lines, Plane, Words, visible
from qkvflow.report.figures.style import LINE, SOFT, sheet
from qkvflow.report.palette import DEPTH, LESS, LIGHT, MORE, PAPER

ALONG = LinearSegmentedColormap.from_list("depth", DEPTH)
AROUND = LinearSegmentedColormap.from_list("around", [LESS, "#f4f4f4", MORE])
WIDEST = 24
"""Columns of a logit lens in one row of the sheet."""


def figure_of(chart: Chart) -> Figure:
    match chart:
        case Lines():
            return _lines(chart)
        case Plane():
            return _plane(chart)
        case Heat():
            return _heat(chart)
        case Words():
            return _words(chart)
        case Cells():
            return _cells(chart)


def _panels(count: int, width: float = 3.2, height: float = 2.5, most: int = 3) -> Any:
    columns = min(count, 2 if count == 4 else most)
    rows = -(-count // columns)
    figure, axes = sheet(max(4.2, width * columns), height * rows + 0.3, rows, columns)
    flat = list(axes.ravel())
    for spare in flat[count:]:
        spare.axis("off")
    return figure, flat[:count]


def _lines(chart: Lines) -> Figure:
    figure, axes = _panels(len(chart.panels))
    for axis, panel in zip(axes, chart.panels, strict=True):
        named = [each for each in panel.series if not each.faint]
        for each in panel.series:
            if each.faint:
                axis.plot(each.x, each.y, color=LIGHT[0], alpha=0.25, linewidth=0.7)
                continue
            colour = LIGHT[named.index(each) % len(LIGHT)]
            if len(named) < len(panel.series):
                colour = LIGHT[1]
            marker = "o" if chart.dots or len(each.x) < 2 else None
            axis.plot(
                each.x, each.y, color=colour, label=each.name, linewidth=1.3, marker=marker, ms=3
            )
            if each.low is not None and each.high is not None:
                axis.fill_between(
                    each.x, each.low, each.high, color=colour, alpha=0.18, linewidth=0
                )
        if chart.log:
            axis.set_yscale("log")
        axis.set(title=panel.title, xlabel=chart.x_label, ylabel=chart.y_label)
        if len(named) > 1 or len(named) < len(panel.series):
            axis.legend(fontsize=6.5, ncols=2 if len(named) > 4 else 1)
    figure.suptitle(chart.title, x=0.01, ha="left", fontweight="bold", fontsize=9)
    return figure


def _plane(chart: Plane) -> Figure:
    figure, axes = _panels(len(chart.panels), 3.1, 2.9)
    for axis, cloud in zip(axes, chart.panels, strict=True):
        if cloud.x.ndim == 2:
            for x, y in zip(cloud.x, cloud.y, strict=True):
                axis.plot(x, y, color=SOFT, alpha=0.35, linewidth=0.6, zorder=1)
        axis.scatter(
            cloud.x, cloud.y, c=cloud.t, cmap=ALONG, vmin=0, vmax=1, s=7, linewidths=0, zorder=2
        )
        axis.axhline(0, color=LINE, linewidth=0.8, zorder=0)
        axis.axvline(0, color=LINE, linewidth=0.8, zorder=0)
        if chart.equal:
            axis.set_aspect("equal", adjustable="datalim")
        axis.set(title=cloud.title, xlabel=chart.x_label, ylabel=chart.y_label)
    figure.colorbar(axes[0].collections[0], ax=axes, label="t", shrink=0.7, aspect=25)
    figure.suptitle(chart.title, x=0.01, ha="left", fontweight="bold", fontsize=9)
    return figure


def _heat(chart: Heat) -> Figure:
    figure, axes = _panels(len(chart.panels), 3.0, 2.3)
    for axis, panel in zip(axes, chart.panels, strict=True):
        from_mean = panel.values - panel.values.mean(1, keepdims=True)
        most = float(np.abs(from_mean).max()) or 1.0
        low = panel.t[0] - (panel.t[1] - panel.t[0] if len(panel.t) > 1 else 1.0)
        image = axis.imshow(
            from_mean,
            cmap=AROUND,
            vmin=-most,
            vmax=most,
            aspect="auto",
            interpolation="nearest",
            extent=(low, panel.t[-1], len(from_mean) + 0.5, 0.5),
        )
        axis.set_title(panel.title, fontsize=7.5)
        axis.set(xlabel="t", ylabel=chart.y_label)
        axis.grid(visible=False)
        figure.colorbar(image, ax=axis, shrink=0.8, aspect=18)
    figure.suptitle(chart.title, x=0.01, ha="left", fontweight="bold", fontsize=9)
    return figure


def _shade(share: float) -> tuple[float, ...]:
    """From paper to the accent, and no darker than black text can stand on."""
    paper, ink = np.array(to_rgb(PAPER)), np.array(to_rgb(MORE))
    return tuple(paper + 0.75 * float(share) * (ink - paper))


def _words(chart: Words) -> Figure:
    texts = [visible(piece) for piece in chart.pieces]
    lines, place = [[]], 0
    for index, text in enumerate(texts):
        if place + len(text) > 78 and lines[-1]:
            lines.append([])
            place = 0
        lines[-1].append((index, place))
        place += len(text)
    figure, axes = sheet(7.0, 0.75 + 0.26 * len(lines))
    axis: Axes = axes[0, 0]
    axis.axis("off")
    axis.set(xlim=(0, 80), ylim=(len(lines) - 0.3, -0.7))
    for row, line in enumerate(lines):
        for index, start in line:
            axis.text(
                start,
                row,
                texts[index],
                family="monospace",
                fontsize=8,
                va="center",
                bbox={
                    "facecolor": _shade(float(chart.shades[index])),
                    "edgecolor": "black" if index == chart.marked else "none",
                    "linewidth": 0.8,
                    "pad": 1.2,
                },
            )
    axis.set_title(chart.title)
    return figure


def _cells(chart: Cells) -> Figure:
    count = len(chart.columns)
    starts = range(0, count, WIDEST)
    height = 0.24 * (len(chart.rows) + 3)
    figure, axes = sheet(7.5, height * len(starts) + 0.4, len(starts))
    for axis, start in zip(axes[:, 0], starts, strict=True):
        stop = min(start + WIDEST, count)
        for row in range(len(chart.rows)):
            for column in range(start, stop):
                colour = _shade(chart.shades[row, column])
                place = (column - start, row)
                axis.add_patch(
                    Rectangle(place, 1, 1, facecolor=colour, edgecolor="white", linewidth=0.6)
                )
                text = str(chart.texts[row, column])[:6]
                axis.text(place[0] + 0.5, row + 0.5, text, ha="center", va="center", fontsize=5.5)
        axis.set(xlim=(0, WIDEST), ylim=(len(chart.rows), 0))
        columns = [name[:6] for name in chart.columns[start:stop]]
        axis.set_xticks(np.arange(stop - start) + 0.5, columns, fontsize=6)
        axis.set_yticks(np.arange(len(chart.rows)) + 0.5, chart.rows, fontsize=6)
        axis.xaxis.tick_top()
        axis.tick_params(length=0)
        axis.grid(visible=False)
        axis.set_ylabel("t")
        for spine in axis.spines.values():
            spine.set_visible(False)
    figure.suptitle(chart.title, x=0.01, ha="left", fontweight="bold", fontsize=9)
    return figure
