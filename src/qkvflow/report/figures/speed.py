"""Time per training step, every round of it, and memory. Both axes start at zero."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkvflow.report import numbers
from qkvflow.report.content import Model, Report
from qkvflow.report.figures.style import SOFT, name_rows, notice, sheet, spread
from qkvflow.report.palette import colour, marker


def speed_comparison(report: Report) -> Figure:
    timed = sorted(
        (model for model in report.models if model.speed is not None),
        key=lambda model: model.speed.median if model.speed else 0.0,
    )
    if not timed:
        return notice("No run says how long it took.")
    sized = [model for model in timed if model.memory is not None]
    columns = 2 if sized else 1
    figure, axes = sheet(
        9.0 if sized else 6.0, 0.9 + 0.3 * len(timed), 1, columns, width_ratios=[3, 2][:columns]
    )
    _times(axes[0, 0], timed)
    if sized:
        _memory(axes[0, 1], timed, report.memory_kind)
    return figure


def _times(axes: Axes, models: list[Model]) -> None:
    longest = max(max(m.speed.rounds, default=m.speed.q3) for m in models if m.speed)
    for row, model in enumerate(models):
        speed, own = model.speed, colour(model.index)
        assert speed is not None
        axes.plot([0, speed.median], [row, row], color=own, alpha=0.35, linewidth=1.2)
        axes.barh(
            row,
            speed.q3 - speed.q1,
            left=speed.q1,
            height=0.56,
            color=own,
            alpha=0.25,
            linewidth=0,
        )
        offsets = [row + spread(place, len(speed.rounds)) for place in range(len(speed.rounds))]
        axes.scatter(
            speed.rounds, offsets, s=9, color=own, marker=marker(model.index), alpha=0.7, lw=0
        )
        axes.plot([speed.median] * 2, [row - 0.32, row + 0.32], color=own, linewidth=1.6)
        end = max(speed.rounds, default=speed.q3)
        _value(axes, end, row, f"{numbers.milliseconds(speed.median)} ms")
    name_rows(axes, models)
    axes.set_xlim(0, longest * 1.16)
    measured = all(model.speed and model.speed.measured for model in models)
    dots = "rounds" if measured else "seeds, from training itself"
    axes.set_xlabel(f"milliseconds per training step (dots: {dots}; bar: quartiles; line: median)")


def _memory(axes: Axes, models: list[Model], kind: str) -> None:
    scale, unit = (2**30, "GiB") if max(m.memory or 0 for m in models) >= 2**30 else (2**20, "MiB")
    for row, model in enumerate(models):
        if model.memory is None:
            continue
        own, size = colour(model.index), model.memory / scale
        axes.plot([0, size], [row, row], color=own, alpha=0.35, linewidth=1.2)
        axes.scatter(size, row, s=22, color=own, marker=marker(model.index), lw=0, zorder=3)
        _value(axes, size, row, numbers.memory(model.memory))
    name_rows(axes, models)
    axes.set_yticklabels([])
    axes.set_xlim(0, max(m.memory or 0 for m in models) / scale * 1.3)
    what = {"program": "memory of the compiled step", "resident": "peak resident memory"}[kind]
    axes.set_xlabel(f"{what}, {unit}")


def _value(axes: Axes, x: float, row: int, text: str) -> None:
    axes.annotate(
        text,
        (x, row),
        xytext=(6, 0),
        textcoords="offset points",
        va="center_baseline",
        fontsize=7,
        color=SOFT,
    )
