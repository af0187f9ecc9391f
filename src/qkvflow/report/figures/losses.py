"""Loss of every seed with the interval of the mean, one row per model."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkvflow.report.content import Group, Model, Report
from qkvflow.report.figures.style import SOFT, name_rows, notice, sheet, spread
from qkvflow.report.palette import colour, marker


def statistical_performance(report: Report) -> Figure:
    found = [
        (group, models)
        for number, group in enumerate(report.groups)
        if (models := [m for m in report.of(number) if m.metric(report.metric)["mean"] is not None])
    ]
    if not found:
        return notice(f"No finished run has a {report.metric} loss.")
    heights = [0.9 + 0.3 * len(models) for _, models in found]
    figure, axes = sheet(6.5, sum(heights), len(found), gridspec_kw={"height_ratios": heights})
    for (group, models), row in zip(found, axes, strict=True):
        _panel(row[0], group, models, report)
    return figure


def _panel(axes: Axes, group: Group, models: list[Model], report: Report) -> None:
    seen = []
    for row, model in enumerate(models):
        summary = model.metric(report.metric)
        ends, own = summary["t_interval"], colour(model.index)
        if ends["low"] is not None:
            axes.barh(
                row,
                ends["high"] - ends["low"],
                left=ends["low"],
                height=0.56,
                color=own,
                alpha=0.2,
                linewidth=0,
            )
            seen += [ends["low"], ends["high"]]
        values = [each["value"] for each in summary["values"]]
        offsets = [row + spread(place, len(values)) for place in range(len(values))]
        axes.scatter(
            values, offsets, s=14, color=own, marker=marker(model.index), alpha=0.8, linewidths=0
        )
        axes.plot([summary["mean"]] * 2, [row - 0.32, row + 0.32], color=own, linewidth=1.6)
        seen += values
    name_rows(axes, models)
    low, high = min(seen), max(seen)
    room = (high - low) or 0.02 * abs(high)
    trigram = group.ngram(3, report.metric)
    near = None if trigram is None else trigram.losses[report.metric]
    # The trigram is on the axis unless it would squeeze the models into less than half of it.
    if near is not None and max(high, near) - min(low, near) < 2 * room:
        low, high = min(low, near), max(high, near)
    axes.set_xlim(low - 0.06 * room, high + 0.06 * room)
    off = []
    for baseline in group.baselines:
        loss = baseline.losses[report.metric]
        if loss is None:
            continue
        name = f"{baseline.name} {loss:.3f}"
        if axes.get_xlim()[0] <= loss <= axes.get_xlim()[1]:
            axes.axvline(loss, color=SOFT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
            axes.annotate(
                name,
                (loss, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                va="bottom",
                color=SOFT,
                fontsize=7,
            )
        else:
            off.append(name)
    label = f"{report.metric} loss, nats per token (dots: seeds; bar: 95 % t interval; line: mean)"
    axes.set_xlabel(label + (f"\noff the axis: {', '.join(off)}" if off else ""))
    if len(report.groups) > 1:
        axes.set_title(group.title, pad=14)
