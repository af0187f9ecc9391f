"""Loss of every seed with the interval of the mean, one row per model."""

from dataclasses import replace

from qkvflow.report import numbers
from qkvflow.report.charts.description import Figure, Row, Rows, Rule, Tip, View, values
from qkvflow.report.charts.labels import above
from qkvflow.report.charts.scales import axis, fit
from qkvflow.report.content import Group, Model, Report

PAD = 0.06


def losses(report: Report, number: int) -> Figure | None:
    models, metric = report.compared(number), report.metric
    if not models:
        return None
    rows = tuple(_row(model, metric) for model in models)
    own = [v for row in rows for v in (*row.values, row.low, row.high)]
    rules = tuple(rule for rule, _ in baselines(report.groups[number], metric))
    narrow = _narrow(report, number, own)
    ranges = {
        "models": narrow,
        "with every n-gram": fit([*own, *(r.value for r in rules)], pad=PAD),
    }
    views = tuple(View(n, *ends, above(rules, *ends)) for n, ends in ranges.items())
    x = axis(f"{metric} loss, nats per token", own, pad=PAD, digits=4)
    x = replace(x, views=views[: 2 if rules else 1], control="range")
    return Figure(
        f"loss-{number}",
        f"{metric.capitalize()} loss of every seed{report.suffix(number)}",
        "Each dot is a seed; the bar is the 95 % t interval of their mean, the line in it the mean."
        " Dashed: n-grams on the same text. Left is better.",
        (Rows("", x, rows, rules, key="dots: seeds; bar: 95 % t interval; line: mean"),),
        columns=1,
    )


def baselines(group: Group, split: str) -> list[tuple[Rule, int | None]]:
    """Rules for the n-grams of the train split and the floor of a group, each with its order."""
    known = ((b.name, b.order, b.losses[split]) for b in group.baselines if not b.seen)
    return [(Rule(loss, f"{name} {loss:.3f}"), n) for name, n, loss in known if loss is not None]


def interval_tip(model: Model, metric: str) -> Tip:
    ends = numbers.interval(model.metric(metric)["t_interval"])
    return (("95 % interval", ends.replace(" to ", " – ")),) if ends else ()


def _narrow(report: Report, number: int, own: list[float | None]) -> tuple[float, float]:
    """The models' range; with the trigram unless that squeezes them into less than half of it."""
    alone = fit(own, pad=PAD)
    for rule, order in baselines(report.groups[number], report.metric):
        wider = fit([*own, rule.value], pad=PAD)
        if order == 3 and wider[1] - wider[0] < 2 * (alone[1] - alone[0]):
            return wider
    return alone


def _row(model: Model, metric: str) -> Row:
    summary = model.metric(metric)
    ends, seeds = summary["t_interval"], summary["values"]
    mean = ("mean", f"{numbers.loss(summary['mean'])} nats")
    return Row(
        model.label,
        model.index,
        summary["mean"],
        values([each["value"] for each in seeds]),
        ends["low"],
        ends["high"],
        tip=(mean, *interval_tip(model, metric), ("seeds", str(len(seeds)))),
        tips=tuple(
            ((f"seed {each['seed']}", f"{numbers.loss(each['value'])} nats"),) for each in seeds
        ),
    )
