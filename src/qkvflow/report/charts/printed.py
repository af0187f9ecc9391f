"""Descriptions drawn by matplotlib, for print."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import figure as sheets
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import NullLocator

from qkvflow.report.charts import cells
from qkvflow.report.charts import description as d
from qkvflow.report.charts.scales import fit, ticks
from qkvflow.report.palette import DEPTH, LINE, SOFT, TINTS, colour, dash, marker

DPI = 200
EM = 7.5
"""Points."""
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": SOFT,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.unicode_minus": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.labelsize": EM,
    "ytick.labelsize": EM,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "figure.facecolor": "white",
    "figure.titlesize": 9,
    "figure.titleweight": "bold",
    "pdf.fonttype": 42,
    # Labels are what users call their models: a dollar sign is a dollar sign.
    "text.parse_math": False,
}
# A white rim keeps text readable where it crosses a line.
HALO = [withStroke(linewidth=2.2, foreground="white")]
ALONG = LinearSegmentedColormap.from_list("depth", DEPTH)
_SIDES = {"start": "left", "middle": "center", "end": "right"}


def write(figure: d.Figure, path: Path) -> tuple[Path, ...]:
    """Write a figure as PNG and PDF; `path` has no ending."""
    # The style holds for this figure only: a caller's own matplotlib settings stay as they are.
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        sheet = draw(figure)
        paths = []
        about = {"Software": None, "Comment": d.digest(figure)}
        for ending, metadata in (("png", about), ("pdf", {"CreationDate": None})):
            paths.append(path.with_name(f"{path.name}.{ending}"))
            sheet.savefig(paths[-1], dpi=DPI, metadata=metadata)
    return tuple(paths)


@dataclass(frozen=True)
class _Place:
    """A panel on the sheet: its size in inches and what draws it."""

    width: float
    height: float
    draw: Callable[[Axes], None]


def draw(figure: d.Figure) -> sheets.Figure:
    """A matplotlib figure, without pyplot."""
    places = _places(figure)
    across = max(1, min(figure.columns, 2 if len(places) == 4 else len(places)))
    lines = [places[i : i + across] for i in range(0, len(places), across)]
    widths = [max(row[i].width for row in lines if i < len(row)) for i in range(across)]
    heights = [max(place.height for place in row) for row in lines]
    more = 0.3 + (0.25 if figure.legend else 0.0)
    size = (max(4.2, sum(widths)), sum(heights) + more)
    sheet = sheets.Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(sheet)
    grid = {"width_ratios": widths, "height_ratios": heights}
    axes = sheet.subplots(len(lines), across, squeeze=False, gridspec_kw=grid)
    for spare in axes.ravel()[len(places) :]:
        spare.remove()
    for place, each in zip(places, axes.ravel(), strict=False):
        place.draw(each)
    sheet.suptitle(figure.title, x=0.01, ha="left")
    _keys(sheet, figure, list(axes.ravel()[: len(places)]))
    return sheet


def _places(figure: d.Figure) -> list[_Place]:
    plots = [p for p in figure.panels if isinstance(p, d.Plot) and p.printed]
    count = sum(1 + sum(view.printed for view in plot.x.views) for plot in plots)
    plot_width = {1: 5.6, 2: 4.2}.get(min(figure.columns, count), 3.3)
    found = []
    for panel in figure.panels:
        match panel:
            case d.Plot(printed=True):
                for number, view in enumerate(panel.x.views):
                    if view.printed or not number:
                        height = 0.45 + panel.height * EM / 72
                        found.append(
                            _Place(plot_width, height, partial(_plot, panel=panel, view=view))
                        )
            case d.Rows():
                width = 6.5 if figure.columns == 1 else 4.2
                height = 0.8 + 0.3 * len(panel.rows) + 0.15 * bool(panel.rules)
                found.append(_Place(width, height, partial(_rows, panel=panel)))
            case d.Heat():
                found.append(_Place(3.0, 2.2, partial(cells.heat, panel=panel)))
            case d.Grid(indices=()):
                for start in range(0, len(panel.columns), cells.WIDEST):
                    part = cells.columns(panel, start)
                    height = 0.24 * (len(panel.rows) + 2)
                    found.append(_Place(7.5, height, partial(cells.shaded, grid=part)))
            case d.Grid():
                count = len(panel.columns)
                size = max(5.0, 1.6 + 0.72 * count), 1.3 + 0.42 * count
                found.append(_Place(*size, partial(cells.verdicts, grid=panel)))
            case d.Words():
                count = len(cells.wrapped(panel.pieces))
                found.append(_Place(5.6, 0.3 + 0.26 * count, partial(cells.words, panel=panel)))
    return found or [_Place(5.0, 0.7, partial(_notice, text=figure.empty))]


def _keys(sheet: sheets.Figure, figure: d.Figure, axes: list[Axes]) -> None:
    """What stands once for all panels: the legend, the colours of depth and of verdicts."""
    series = [s for panel in figure.panels if isinstance(panel, d.Plot) for s in panel.series]
    if any(each.depth for each in series):
        colours = ScalarMappable(cmap=ALONG)
        sheet.colorbar(colours, ax=axes, label="t", shrink=0.7, aspect=25)
    if figure.legend:
        named = {s.name: s for s in series if s.look in ("line", "dots", "points")}
        handles = [_handle(s) for s in named.values()]
        sheet.legend(handles=handles, loc="outside lower center", ncols=min(5, len(handles) or 1))
    for panel in figure.panels[:1]:
        if isinstance(panel, d.Grid) and panel.keys:
            handles = [
                Patch(facecolor=TINTS.get(tint, "white"), edgecolor=LINE, label=text)
                for tint, text in panel.keys
            ]
            sheet.legend(handles=handles, loc="outside lower center", ncols=4)


def _handle(s: d.Series) -> Line2D:
    handle = Line2D([], [], color=colour(s.index), linestyle=dash(s.index), label=s.name)
    if s.look != "line":
        handle.set(marker=marker(s.index), markersize=4)
    if s.look == "points":
        handle.set_linestyle("none")
    return handle


def _notice(axes: Axes, text: str) -> None:
    axes.axis("off")
    axes.text(0.5, 0.5, text, ha="center", va="center", color=SOFT, wrap=True)


def _set_axis(axes: Axes, which: str, axis: d.Axis, low: float, high: float) -> None:
    length = axes.get_figure(root=True).get_size_inches()["xy".index(which)]  # type: ignore
    share = axes.get_subplotspec().get_gridspec().ncols if which == "x" else 1  # type: ignore
    most = max(3, int(length / share / 0.55)) if which == "x" else 6
    places = ticks(axis, low, high, most)
    each = axes.xaxis if which == "x" else axes.yaxis
    if axis.log:
        axes.set(**{f"{which}scale": "log"})
        each.set_minor_locator(NullLocator())
    axes.set(**{f"{which}lim": (low, high), f"{which}label": axis.label})
    each.set_ticks([value for value, _ in places], [text for _, text in places])


def _plot(axes: Axes, panel: d.Plot, view: d.View) -> None:
    whole = view is panel.x.views[0]
    axes.set_title(panel.title if whole else f"{panel.title}, {view.text}")
    low, high = panel.y.views[0].low, panel.y.views[0].high
    if not whole:
        inside = [value for s in panel.series for value in _inside(s, view.low, view.high)]
        low, high = fit(inside, log=panel.y.log, pad=panel.y.pad)
    _set_axis(axes, "x", panel.x, view.low, view.high)
    _set_axis(axes, "y", panel.y, low, high)
    for zero, line in ((panel.x, axes.axvline), (panel.y, axes.axhline)):
        if not zero.log and zero.views[0].low < 0 < zero.views[0].high:
            line(0, color=SOFT, linewidth=0.6, alpha=0.5, zorder=0)
    if panel.equal:
        axes.set_aspect("equal", adjustable="box")
    for rule in panel.rules:
        if low <= rule.value <= high:
            axes.axhline(rule.value, color=SOFT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
            place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
            text = {"color": SOFT, "fontsize": 7, "path_effects": HALO}
            axes.annotate(rule.name, (0, rule.value), xytext=(3, 2), **place, **text)
    for series in panel.series:
        _series(axes, series)
    if panel.legend:
        named = [s for s in panel.series if s.look in ("line", "dots", "points") and not s.depth]
        handles = [_handle(s) for s in named]
        axes.legend(handles=handles, fontsize=6.5, ncols=2 if len(named) > 4 else 1)


def _inside(series: d.Series, low: float, high: float) -> list[float | None]:
    kept = [i for i, x in enumerate(series.x) if x is not None and low <= x <= high]
    return [part[i] for part in (series.y, series.low, series.high) if part for i in kept]


def _series(axes: Axes, s: d.Series) -> None:
    x, y = np.array(s.x, float), np.array(s.y, float)
    own, dots = colour(s.index), s.look in ("dots", "points") or len(x) < 2
    if s.look == "front":
        axes.step(x, y, where="post", color=SOFT, lw=1, linestyle=(0, (2, 2)), zorder=1)
        return
    if s.look == "thin":
        axes.plot(x, y, color=own, alpha=0.25, linewidth=0.7)
        return
    if s.depth:
        if s.look == "path":
            axes.plot(x, y, color=SOFT, alpha=0.35, linewidth=0.6, zorder=1)
        t = np.array(s.depth, float)
        axes.scatter(x, y, c=t, cmap=ALONG, vmin=0, vmax=1, s=7, linewidths=0, zorder=2)
        return
    if s.low:
        low, high = np.array(s.low, float), np.array(s.high, float)
        if s.look == "points" or s.labels:
            axes.vlines(x, low, high, color=own, linewidth=1.2)
        else:
            axes.fill_between(x, low, high, color=own, alpha=0.16, linewidth=0)
    if s.look != "points":
        axes.plot(x, y, color=own, linestyle=dash(s.index), linewidth=1.2, label=s.name)
    if dots:
        size = 26 if s.look == "points" else 12
        shape = {"marker": marker(s.index), "edgecolors": "white", "linewidths": 0.6}
        axes.scatter(x, y, s=size, color=own, zorder=3, **shape)
    for i in s.rings:
        axes.scatter(x[i], y[i], s=95, facecolors="none", edgecolors=own, linewidths=0.8, zorder=4)
    for i, label in enumerate(s.labels):
        if label is not None:
            axes.annotate(
                label.text,
                (x[i], y[i]),
                xytext=(EM * label.dx, EM * label.dy),
                textcoords="offset points",
                ha=_SIDES[label.anchor],
                va="center_baseline",
                fontsize=0.93 * EM,
                fontweight="bold",
                color=own,
                annotation_clip=False,
                path_effects=HALO,
            )


def spread(place: int, count: int) -> float:
    """A fixed offset that keeps the dots of a row apart."""
    return 0.09 * (place * 2 % 5 - 2) if count > 1 else 0.0


def _rows(axes: Axes, panel: d.Rows) -> None:
    view = panel.x.views[0]
    for number, row in enumerate(panel.rows):
        _row(axes, panel, number, row)
    off = []
    levels = view.levels or (None,) * len(panel.rules)
    for rule, level in zip(panel.rules, levels, strict=True):
        if not view.low <= rule.value <= view.high:
            off.append(rule.name)
            continue
        axes.axvline(rule.value, color=SOFT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
        if level is not None:
            place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
            text = {"ha": "center", "va": "bottom", "color": SOFT, "fontsize": 7}
            axes.annotate(rule.name, (rule.value, 1), xytext=(0, 2 + 8 * level), **place, **text)
    _set_axis(axes, "x", panel.x, view.low, view.high)
    label = panel.x.label + (f" ({panel.key})" if panel.key else "")
    axes.set_xlabel(label + (f"\noff the axis: {', '.join(off)}" if off else ""))
    high = max((level + 1 for level in levels if level is not None), default=0)
    axes.set_title(panel.title, pad=6 + 9 * high)
    axes.set_ylim(len(panel.rows) - 0.4, -0.6)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", visible=False)
    cells.names(axes, "y", range(len(panel.rows)), [(row.name, row.index) for row in panel.rows])


def _row(axes: Axes, panel: d.Rows, number: int, row: d.Row) -> None:
    own = colour(row.index)
    if panel.stems:
        axes.plot([0, row.middle], [number] * 2, color=own, alpha=0.35, linewidth=1.2)
    if row.low is not None and row.high is not None:
        bar = {"left": row.low, "height": 0.56, "color": own, "alpha": 0.2, "linewidth": 0}
        axes.barh(number, row.high - row.low, **bar)
    count = len(row.values)
    dots = {"color": own, "marker": marker(row.index), "linewidths": 0}
    offsets = [number + spread(place, count) for place in range(count)]
    axes.scatter(np.array(row.values, float), offsets, s=12, alpha=0.8, **dots)
    if count:
        axes.plot([row.middle] * 2, [number - 0.32, number + 0.32], color=own, linewidth=1.6)
    else:
        axes.scatter(row.middle, number, s=22, zorder=3, **dots)
    if row.note:
        end = max([row.middle, row.high or row.middle, *(v for v in row.values if v is not None)])
        place = {"xytext": (6, 0), "textcoords": "offset points", "va": "center_baseline"}
        axes.annotate(row.note, (end, number), **place, fontsize=7, color=SOFT)
