"""Loss with its interval against parameters, FLOPs and time, with the Pareto front."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkvflow.report.content import Model, Report
from qkvflow.report.costs import COSTS, cost, front
from qkvflow.report.figures.style import SOFT, log_axis, name_points, notice, sheet
from qkvflow.report.palette import colour, marker


def efficiency_with_error(report: Report) -> Figure:
    found = [
        (number, models)
        for number in range(len(report.groups))
        if (models := [m for m in report.of(number) if m.metric(report.metric)["mean"] is not None])
    ]
    if not found:
        return notice(f"No finished run has a {report.metric} loss.")
    figure, axes = sheet(10.0, 3.4 * len(found), len(found), len(COSTS), sharey="row")
    placed = []
    for row, (number, models) in zip(axes, found, strict=True):
        for panel, axis in zip(row, COSTS, strict=True):
            placed.append((panel, _panel(panel, models, axis, report.metric)))
        row[0].set_ylabel(f"{report.metric} loss, nats per token")
        if len(found) > 1:
            row[0].set_title(report.groups[number].title)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for panel, points in placed:
        name_points(panel, points)
    return figure


def _panel(
    axes: Axes, models: list[Model], axis: str, metric: str
) -> list[tuple[Model, float, float]]:
    points = []
    for model in models:
        x, summary = cost(model, axis), model.metric(metric)
        if x is None or x <= 0:
            continue
        ends, own = summary["t_interval"], colour(model.index)
        if ends["low"] is not None:
            axes.plot([x, x], [ends["low"], ends["high"]], color=own, linewidth=1.3)
        axes.scatter(
            x,
            summary["mean"],
            s=26,
            color=own,
            marker=marker(model.index),
            edgecolors="white",
            linewidths=0.7,
            zorder=3,
        )
        points.append((model, x, summary["mean"]))
    axes.set_xlabel(f"{COSTS[axis]} (log)")
    if not points:
        axes.text(0.5, 0.5, "not known", transform=axes.transAxes, ha="center", color=SOFT)
        return []
    by_label = {model.label: (x, y) for model, x, y in points}
    best = [by_label[label] for label in front(models, axis, metric) if label in by_label]
    if len(best) > 1:
        xs, ys = zip(*best, strict=True)
        axes.step(xs, ys, where="post", color=SOFT, linewidth=1, linestyle=(0, (2, 2)), zorder=1)
    logs = np.log([x for _, x, _ in points])
    room = 0.2 * (logs.max() - logs.min() or 1.0)
    axes.set_xlim(np.exp(logs.min() - room), np.exp(logs.max() + room))
    log_axis(axes)
    axes.margins(y=0.12)
    return points
