"""Descriptions drawn by matplotlib, for print."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import figure as sheets
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator, NullLocator

from qkvflow.report.charts.description import (
    Axis,
    Cell,
    Figure,
    Grid,
    Heat,
    Plot,
    Row,
    Rows,
    Series,
    View,
    Words,
)
from qkvflow.report.charts.scales import fit, ticks
from qkvflow.report.palette import DEPTH, LESS, MORE, PAPER, TINTS, colour, dash, marker

DPI = 200
EM = 7.5
"""Points."""
SOFT, LINE = "#59616b", "#dfe3e7"
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
AROUND = LinearSegmentedColormap.from_list("around", [LESS, "#f4f4f4", MORE])
WIDEST = 24
"""Columns of a shaded grid in one row of the sheet."""
LINE_LENGTH = 78
"""Characters of shaded text in one line."""
_SIDES = {"start": "left", "middle": "center", "end": "right"}


def write(figure: Figure, path: Path) -> tuple[Path, ...]:
    """Write a figure as PNG and PDF; `path` has no ending."""
    # The style holds for this figure only: a caller's own matplotlib settings stay as they are.
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        sheet = draw(figure)
        paths = []
        for ending, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
            paths.append(path.with_name(f"{path.name}.{ending}"))
            sheet.savefig(paths[-1], dpi=DPI, metadata=metadata)
    return tuple(paths)


@dataclass(frozen=True)
class _Place:
    """A panel on the sheet: its size in inches and what draws it."""

    width: float
    height: float
    draw: Callable[[Axes], None]


def draw(figure: Figure) -> sheets.Figure:
    """A matplotlib figure, without pyplot."""
    places = _places(figure)
    columns = max(1, min(figure.columns, 2 if len(places) == 4 else len(places)))
    lines = [places[i : i + columns] for i in range(0, len(places), columns)]
    widths = [max(row[i].width for row in lines if i < len(row)) for i in range(columns)]
    heights = [max(place.height for place in row) for row in lines]
    more = 0.3 + (0.25 if figure.legend else 0.0)
    size = (max(4.2, sum(widths)), sum(heights) + more)
    sheet = sheets.Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(sheet)
    grid = {"width_ratios": widths, "height_ratios": heights}
    axes = sheet.subplots(len(lines), columns, squeeze=False, gridspec_kw=grid)
    for spare in axes.ravel()[len(places) :]:
        spare.remove()
    for place, each in zip(places, axes.ravel(), strict=False):
        place.draw(each)
    sheet.suptitle(figure.title, x=0.01, ha="left")
    _keys(sheet, figure, list(axes.ravel()[: len(places)]))
    return sheet


def _places(figure: Figure) -> list[_Place]:
    plot_width = {1: 5.6, 2: 4.2}.get(figure.columns, 3.3)
    found = []
    for panel in figure.panels:
        match panel:
            case Plot(printed=True):
                for number, view in enumerate(panel.x.views):
                    if view.printed or not number:
                        height = 0.45 + panel.height * EM / 72
                        found.append(_Place(plot_width, height, _bind(_plot, panel, view)))
            case Rows():
                width = 6.5 if figure.columns == 1 else 4.2
                height = 0.8 + 0.3 * len(panel.rows) + 0.15 * bool(panel.rules)
                found.append(_Place(width, height, _bind(_rows, panel)))
            case Heat():
                found.append(_Place(3.0, 2.2, _bind(_heat, panel)))
            case Grid(indices=()):
                for start in range(0, len(panel.columns), WIDEST):
                    part = _columns(panel, start)
                    height = 0.24 * (len(panel.rows) + 2)
                    found.append(_Place(7.5, height, _bind(_shaded, part, WIDEST)))
            case Grid():
                count = len(panel.columns)
                size = max(5.0, 1.6 + 0.72 * count), 1.3 + 0.42 * count
                found.append(_Place(*size, _bind(_verdicts, panel)))
            case Words():
                count = len(_wrapped(panel.pieces))
                found.append(_Place(5.6, 0.3 + 0.26 * count, _bind(_words, panel)))
    return found or [_Place(5.0, 0.7, lambda axes: _notice(axes, figure.empty))]


def _bind(function: Callable[..., None], *arguments: Any) -> Callable[[Axes], None]:
    return lambda axes: function(axes, *arguments)


def _keys(sheet: sheets.Figure, figure: Figure, axes: list[Axes]) -> None:
    """What stands once for all panels: the legend, the colours of depth and of verdicts."""
    series = [s for panel in figure.panels if isinstance(panel, Plot) for s in panel.series]
    if any(each.depth for each in series):
        colours = ScalarMappable(cmap=ALONG)
        sheet.colorbar(colours, ax=axes, label="t", shrink=0.7, aspect=25)
    if figure.legend:
        named = {s.name: s for s in series if s.look in ("line", "dots", "points")}
        handles = [
            Line2D([], [], color=colour(s.index), linestyle=dash(s.index), label=s.name)
            for s in named.values()
        ]
        sheet.legend(handles=handles, loc="outside lower center", ncols=min(5, len(handles) or 1))
    for panel in figure.panels[:1]:
        if isinstance(panel, Grid) and panel.keys:
            handles = [
                Patch(facecolor=TINTS.get(tint, "white"), edgecolor=LINE, label=text)
                for tint, text in panel.keys
            ]
            sheet.legend(handles=handles, loc="outside lower center", ncols=4)


def _notice(axes: Axes, text: str) -> None:
    axes.axis("off")
    axes.text(0.5, 0.5, text, ha="center", va="center", color=SOFT, wrap=True)


def _set_axis(axes: Axes, which: str, axis: Axis, low: float, high: float) -> None:
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


def _plot(axes: Axes, panel: Plot, view: View) -> None:
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
        named = [s for s in panel.series if s.look != "thin"]
        axes.legend(fontsize=6.5, ncols=2 if len(named) > 4 else 1)


def _inside(series: Series, low: float, high: float) -> list[float | None]:
    kept = [i for i, x in enumerate(series.x) if x is not None and low <= x <= high]
    return [part[i] for part in (series.y, series.low, series.high) if part for i in kept]


def _series(axes: Axes, s: Series) -> None:
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


def _rows(axes: Axes, panel: Rows) -> None:
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
    axes.set_title(
        panel.title, pad=6 + 9 * max((n + 1 for n in levels if n is not None), default=0)
    )
    axes.set_ylim(len(panel.rows) - 0.4, -0.6)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", visible=False)
    _names(axes, "y", range(len(panel.rows)), [(row.name, row.index) for row in panel.rows])


def _row(axes: Axes, panel: Rows, number: int, row: Row) -> None:
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


def _names(axes: Axes, which: str, places: Any, names: list[tuple[str, int]]) -> None:
    """Names of rows or columns, each in its colour."""
    each = axes.xaxis if which == "x" else axes.yaxis
    each.set_ticks(list(places), [name for name, _ in names])
    axes.tick_params(axis=which, length=0)  # type: ignore
    for text, (_, index) in zip(each.get_ticklabels(), names, strict=True):
        text.set(color=colour(index), fontweight="bold", fontsize=8)


def _heat(axes: Axes, panel: Heat) -> None:
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


def _columns(grid: Grid, start: int) -> Grid:
    stop = start + WIDEST
    return replace(
        grid, columns=grid.columns[start:stop], cells=tuple(row[start:stop] for row in grid.cells)
    )


def _shaded(axes: Axes, grid: Grid, wide: int) -> None:
    _cells(axes, grid, lambda cell: _shade(cell.shade), size=5.5, longest=6)
    axes.set_xlim(0, wide)
    axes.set_xticks(np.arange(len(grid.columns)) + 0.5, [c[:6] for c in grid.columns], fontsize=6)
    axes.set_yticks(np.arange(len(grid.rows)) + 0.5, grid.rows, fontsize=6)
    axes.set_ylabel(grid.corner)


def _verdicts(axes: Axes, grid: Grid) -> None:
    _cells(axes, grid, lambda cell: TINTS.get(cell.tint, "white"), size=7.5)
    places = np.arange(len(grid.rows)) + 0.5
    for which, names in (("x", grid.columns), ("y", grid.rows)):
        _names(axes, which, places, list(zip(names, grid.indices, strict=True)))
    for text in axes.get_xticklabels():
        text.set(rotation=35, ha="left")
    axes.set_title(grid.title, pad=12)
    axes.xaxis.set_label_position("bottom")
    axes.set_xlabel(grid.note, fontsize=7)


def _cells(
    axes: Axes, grid: Grid, tint: Callable[[Cell], Any], *, size: float, longest: int | None = None
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


def _wrapped(pieces: tuple[str, ...]) -> list[list[tuple[int, int]]]:
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


def _words(axes: Axes, panel: Words) -> None:
    lines = _wrapped(panel.pieces)
    axes.axis("off")
    axes.set(xlim=(0, LINE_LENGTH + 2), ylim=(len(lines) - 0.3, -0.7))
    for number, line in enumerate(lines):
        for index, start in line:
            edge = "black" if index == panel.marked else "none"
            box = {"facecolor": _shade(panel.shades[index] or 0.0), "edgecolor": edge}
            box |= {"linewidth": 0.8, "pad": 1.2}
            font = {"family": "monospace", "fontsize": 8, "va": "center"}
            axes.text(start, number, panel.pieces[index], bbox=box, **font)
