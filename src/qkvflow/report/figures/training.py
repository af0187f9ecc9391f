"""Training curves: mean over seeds, with a band from the lowest to the highest seed."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from qkvflow.report.content import Group, Model, Report
from qkvflow.report.curves import Band
from qkvflow.report.figures.style import HALO, SOFT, notice, sheet, tick
from qkvflow.report.palette import colour, dash


def training_curves(report: Report) -> Figure:
    found = [
        (group, models)
        for number, group in enumerate(report.groups)
        if (models := [m for m in report.of(number) if m.validation or m.train])
    ]
    if not found:
        return notice("No run left a training curve.")
    # A closer look at the end, unless the few evaluations there were all fall into it.
    starts = {"validation": 0.0}
    if any(_begins_early(models) for _, models in found):
        starts["validation, last half"] = 0.5
    titles = [*starts, "train, smoothed"]
    figure, axes = sheet(10.0, 0.5 + 3.0 * len(found), len(found), len(titles))
    for row, (group, models) in zip(axes, found, strict=True):
        for panel, start in zip(row, starts.values(), strict=False):
            _lines(panel, [(m, m.validation) for m in models], group, start)
        _lines(row[-1], [(m, m.train) for m in models], None, 0.0)
        row[0].set_ylabel("loss, nats per token")
        for panel, title in zip(row, titles, strict=True):
            panel.set_title(f"{title}\n{group.title}" if len(found) > 1 else title)
    handles = [
        Line2D([], [], color=colour(m.index), linestyle=dash(m.index), label=m.label)
        for _, models in found
        for m in models
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(5, len(handles)))
    return figure


def _begins_early(models: list[Model]) -> bool:
    bands = [model.validation for model in models if model.validation is not None]
    return any(band.step[0] < 0.5 * max(b.step[-1] for b in bands) for band in bands)


def _lines(
    axes: Axes, curves: list[tuple[Model, Band | None]], group: Group | None, start: float
) -> None:
    axes.set_xlabel("training steps")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    known = [(model, band) for model, band in curves if band is not None]
    if not known:
        axes.text(0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", color=SOFT)
        return
    end = max(band.step[-1] for _, band in known)
    seen = []
    for model, band in known:
        own, kept = colour(model.index), band.step >= start * end
        if not kept.any():
            continue
        steps = band.step[kept]
        axes.fill_between(
            steps, band.low[kept], band.high[kept], color=own, alpha=0.16, linewidth=0
        )
        axes.plot(
            steps,
            band.mean[kept],
            color=own,
            linestyle=dash(model.index),
            linewidth=1.2,
            marker="o" if len(steps) == 1 else None,
            markersize=3,
        )
        seen += [band.low[kept].min(), band.high[kept].max()]
    low, high = min(seen), max(seen)
    for baseline in group.baselines if group else ():
        loss = baseline.losses["validation"]
        if loss is not None and low <= loss <= high:
            axes.axhline(loss, color=SOFT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
            axes.annotate(
                f"{baseline.name} {loss:.3f}",
                (0, loss),
                xycoords=("axes fraction", "data"),
                xytext=(3, 2),
                textcoords="offset points",
                path_effects=HALO,
                color=SOFT,
                fontsize=7,
            )
