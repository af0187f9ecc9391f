"""Quality against compute: a trained model's loss at other depths, by FLOPs and by time."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkvflow.report.figures.style import HALO, SOFT, log_axis, sheet
from qkvflow.report.palette import colour, marker

COSTS = {"flops_per_token": "forward FLOPs per token", "ms_per_token": "milliseconds per token"}


def quality_against_compute(points: Sequence[Mapping[str, Any]], title: str) -> Figure:
    figure, axes = sheet(8.4, 3.6, 1, len(COSTS), sharey="row")
    schemes = list(dict.fromkeys(point["scheme"] for point in points))
    for panel, (cost, label) in zip(axes[0], COSTS.items(), strict=True):
        for index, scheme in enumerate(schemes):
            mine = sorted((p for p in points if p["scheme"] == scheme), key=lambda p: p[cost])
            _line(panel, mine, cost, index, scheme)
        for point in points:
            if point["trained"]:
                place = (point[cost], point["nats"])
                panel.scatter(*place, s=95, facecolors="none", edgecolors=SOFT, zorder=4)
        panel.set_xlabel(f"{label} (log)")
        log_axis(panel)
    axes[0, 0].set_ylabel("loss, nats per token")
    axes[0, 0].set_title(title)
    axes[0, 1].legend(title="the ring: as it was trained", title_fontsize=7, fontsize=7)
    return figure


def _line(axes: Axes, mine: list[Mapping[str, Any]], cost: str, index: int, scheme: str) -> None:
    """One scheme's points in order of cost, each with its standard error and its setting."""
    own, shape = colour(index), marker(8 * index)
    xs, ys = [point[cost] for point in mine], [point["nats"] for point in mine]
    errors = [point["standard_error"] or 0.0 for point in mine]
    axes.errorbar(
        xs,
        ys,
        yerr=errors,
        color=own,
        marker=shape,
        markersize=4.5,
        markeredgecolor="white",
        markeredgewidth=0.6,
        linewidth=1.1,
        elinewidth=0.8,
        label=scheme,
        zorder=3,
    )
    for point, x, y in zip(mine, xs, ys, strict=True):
        text = f"{point['tolerance']:g}" if point["num_steps"] is None else str(point["num_steps"])
        axes.annotate(
            text,
            (x, y),
            xytext=(0, 5),
            textcoords="offset points",
            ha="center",
            fontsize=6,
            color=own,
            path_effects=HALO,
        )
