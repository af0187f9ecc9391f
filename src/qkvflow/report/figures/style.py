"""How printed figures look, and what more than one of them needs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import Bbox

from qkvflow.report import numbers
from qkvflow.report.content import Model
from qkvflow.report.palette import colour

DPI = 200
# A white rim keeps text readable where it crosses a line.
HALO = [withStroke(linewidth=2.2, foreground="white")]
SOFT, LINE = "#59616b", "#dfe3e7"
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 9,
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
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "pdf.fonttype": 42,
    # Labels are what users call their models: a dollar sign is a dollar sign.
    "text.parse_math": False,
}


def save(make: Callable[[], Figure], path: Path) -> tuple[Path, ...]:
    """Draw a figure in this style and write it as PNG and PDF; `path` has no ending."""
    # The style holds for this figure only: a caller's own matplotlib settings stay as they are.
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        figure = make()
        paths = []
        for ending, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
            paths.append(path.with_name(f"{path.name}.{ending}"))
            figure.savefig(paths[-1], dpi=DPI, metadata=metadata)
    return tuple(paths)


def sheet(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> Any:
    """A figure without pyplot, and its axes as a list of rows."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def notice(text: str) -> Figure:
    """A figure that says why it is empty."""
    figure, axes = sheet(5.0, 1.2)
    axes[0, 0].axis("off")
    axes[0, 0].text(0.5, 0.5, text, ha="center", va="center", color=SOFT, wrap=True)
    return figure


def name_rows(axes: Axes, models: Sequence[Model]) -> None:
    """One row per model, the first on top, each name in its colour."""
    axes.set_yticks(range(len(models)), [model.label for model in models])
    axes.set_ylim(len(models) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", visible=False)
    for text, model in zip(axes.get_yticklabels(), models, strict=True):
        text.set_color(colour(model.index))
        text.set_fontweight("bold")
        text.set_fontsize(8)


def spread(place: int, count: int) -> float:
    """A fixed offset that keeps the dots of a row apart."""
    return 0.09 * (place * 2 % 5 - 2) if count > 1 else 0.0


def log_axis(axes: Axes) -> None:
    """A logarithmic x axis with numbers such as 5M, at most a handful of them."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    decades = high / low
    factors = (1, 1.5, 2, 3, 5, 7) if decades < 4 else (1, 2, 5) if decades < 100 else (1,)
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=factors))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="minor", length=0)


def tick(value: float) -> str:
    """50.0M as 50M."""
    text = numbers.short(value)
    digits = text.rstrip("kMGTPE")
    unit = text[len(digits) :]
    return (digits.rstrip("0").rstrip(".") if "." in digits else digits) + unit


def name_points(axes: Axes, points: Sequence[tuple[Model, float, float]]) -> None:
    """Names beside points, each at the first place where it touches nothing.

    Call when limits and layout are final: places are in pixels.
    """
    figure = axes.figure
    assert isinstance(figure, Figure)
    scale = figure.dpi / 72
    frame = axes.get_window_extent()
    places = [axes.transData.transform((x, y)) for _, x, y in points]
    taken = [Bbox.from_extents(x - r, y - r, x + r, y + r) for x, y in places for r in [4 * scale]]
    tries = [(side, lift) for lift in (0, 8, -8, 16, -16, 24, -24) for side in ("left", "right")]
    tries += [("center", lift) for lift in (12, -12, 22, -22, 32, -32)]
    ordered = sorted(zip(points, places, strict=True), key=lambda item: item[0][2])
    for (model, x, y), (px, py) in ordered:
        text = axes.annotate(
            model.label,
            (x, y),
            xytext=(0, 0),
            textcoords="offset points",
            va="center_baseline",
            fontsize=7,
            fontweight="bold",
            color=colour(model.index),
            annotation_clip=False,
            path_effects=HALO,
        )
        size = text.get_window_extent()
        for side, lift in tries:
            left = {"left": 6 * scale, "right": -6 * scale - size.width, "center": -size.width / 2}
            start, middle = px + left[side], py + lift * scale
            half = size.height / 2
            box = Bbox.from_extents(start, middle - half, start + size.width, middle + half)
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 + 4 * scale
            inside = inside and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                text.set(horizontalalignment=side)
                text.xyann = ({"left": 6, "right": -6, "center": 0}[side], lift)
                break
        else:
            # In a crowd a name would hide its neighbours: the table has the numbers.
            text.remove()
