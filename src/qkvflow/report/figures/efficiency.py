"""Loss with its interval against parameters, FLOPs and time, with the Pareto front."""

from collections.abc import Callable

from qkvflow.report import numbers
from qkvflow.report.charts.description import Axis, Figure, Plot, Series, values
from qkvflow.report.charts.labels import beside
from qkvflow.report.charts.scales import axis
from qkvflow.report.content import Model, Report
from qkvflow.report.costs import COSTS, cost, front
from qkvflow.report.figures.losses import interval_tip

TEXTS: dict[str, Callable[[float], str]] = {
    "params": numbers.short,
    "flops": numbers.short,
    "seconds": numbers.seconds,
}


def efficiency(report: Report, number: int) -> Figure | None:
    models, metric = report.compared(number), report.metric
    if not models:
        return None
    seen = [v for m in models for v in (m.metric(metric)["mean"], *(_ends(m, metric) or ()))]
    y = axis(f"{metric} loss, nats per token", seen, pad=0.1, digits=4)
    measured = all(m.speed is not None and m.speed.measured for m in models)
    time = (
        "Time is the measured median per step times the steps."
        if measured
        else "Time is that of training itself, evaluation and compilation left out."
    )
    panels = [p for name in COSTS if (p := _panel(models, name, y, metric)) is not None]
    return Figure(
        f"efficiency-{number}",
        f"Loss against what it costs{report.suffix(number)}",
        f"Mean {metric} loss with its 95 % interval against stored parameters, training FLOPs spent"
        f" and training time (logarithmic). {time} The line is the Pareto front of the means: no"
        " other model is cheaper and lower. Overlapping intervals mean that the front is not"
        " certain.",
        tuple(panels),
        legend=any(None in series.labels for panel in panels for series in panel.series),
    )


def _ends(model: Model, metric: str) -> tuple[float, float] | None:
    ends = model.metric(metric)["t_interval"]
    return None if ends["low"] is None else (ends["low"], ends["high"])


def _panel(models: list[Model], name: str, y: Axis, metric: str) -> Plot | None:
    means = {model.label: model.metric(metric)["mean"] for model in models}
    costs = {model.label: x for model in models if (x := cost(model, name)) is not None and x > 0}
    if not costs:
        return None
    x = axis(COSTS[name], costs.values(), log=True, pad=0.2)
    ends = {model.label: _ends(model, metric) for model in models}
    whiskers = [(at, *e) for label, at in costs.items() if (e := ends[label]) is not None]
    labels = beside([(at, means[label], label) for label, at in costs.items()], x, y, whiskers)
    placed = dict(zip(costs, labels, strict=True))
    series = []
    best = [label for label in front(models, name, metric) if label in costs]
    if len(best) > 1:
        steps = values([costs[b] for b in best]), values([means[b] for b in best])
        series.append(Series("", 0, *steps, look="front", members=tuple(best)))
    for model in models:
        if model.label in costs:
            at, own = costs[model.label], values(ends[model.label] or ())
            loss = ("loss", f"{numbers.loss(means[model.label])} nats")
            spent = (COSTS[name], TEXTS[name](at))
            series.append(
                Series(
                    model.label,
                    model.index,
                    values([at]),
                    values([means[model.label]]),
                    own[:1],
                    own[1:],
                    look="points",
                    labels=(placed[model.label],),
                    tips=((loss, *interval_tip(model, metric), spent),),
                )
            )
    return Plot("", x, y, tuple(series), height=25.0)
