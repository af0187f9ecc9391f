"""The middle of the page: places for the figures, and the matrix of tests."""

from typing import Any

from qkvflow.report import numbers
from qkvflow.report.content import Model, Reach, Report, seen_from
from qkvflow.report.page.markup import Raw, tag
from qkvflow.report.palette import LIGHT


def sections(report: Report) -> Raw:
    return tag(
        "div",
        _chips(report),
        [_of_group(report, number) for number in range(len(report.groups))],
        _speed(report),
        [_reach(report, number) for number in range(len(report.groups))],
        [_matrix(report, number) for number in range(len(report.groups))],
    )


def _chips(report: Report) -> Raw | None:
    """Which models are shown, for all figures at once."""
    if len(report.models) < 2:
        return None
    buttons = [
        tag(
            "button",
            tag("i", class_=f"swatch m{model.index % len(LIGHT)}"),
            model.label,
            type="button",
            class_="chip",
            data_model=model.label,
            aria_pressed="true",
        )
        for model in report.models
    ]
    every = tag("button", "all", type="button", class_="chip every", id="show-all")
    return tag("div", every, buttons, id="chips", role="group", aria_label="Models in the figures")


def _of_group(report: Report, number: int) -> list[Raw | None]:
    group, models = report.groups[number], report.of(number)
    suffix = f": {group.title}" if len(report.groups) > 1 else ""
    metric = report.metric
    seen = [model for model in models if model.metric(metric)["mean"] is not None]
    figures: list[Raw | None] = []
    if seen:
        figures.append(
            _figure(
                "loss",
                number,
                f"{metric.capitalize()} loss of every seed{suffix}",
                "Each dot is a seed; the bar is the 95 % t interval of their mean, the line in it"
                " the mean. Dashed: n-grams on the same text. Left is better.",
            )
        )
        costs = "stored parameters, training FLOPs spent and training time"
        figures.append(
            _figure(
                "efficiency",
                number,
                f"Loss against what it costs{suffix}",
                f"Mean {metric} loss with its 95 % interval against {costs} (logarithmic)."
                f" {_time_source(seen)} The line is the Pareto front of the means: no other"
                " model is cheaper and lower. Overlapping intervals mean that the front is not"
                " certain.",
            )
        )
    if any(model.validation or model.train for model in models):
        width = max((model.train.width for model in models if model.train), default=1)
        smooth = f", smoothed over {width} logged values" if width > 1 else ""
        figures.append(
            _figure(
                "curves",
                number,
                f"Training curves{suffix}",
                "Mean over seeds; the band runs from the lowest to the highest seed. Train loss is"
                f" that of the batches{smooth}. Drag over the figure to zoom, double-click for"
                " all.",
            )
        )
    if any(model.evaluations for model in models):
        figures.append(
            _figure(
                "depth",
                number,
                f"Loss at other depths{suffix}",
                "The trained models run with another number of depth steps; the band is the range"
                " over seeds, the ring marks the steps trained with.",
            )
        )
        figures.append(_depth_table(models))
    return figures


def _figure(kind: str, group: int, title: str, caption: str) -> Raw:
    return tag(
        "figure",
        tag("h2", title),
        tag("div", class_="controls"),
        tag("div", class_="plot", data_figure=kind, data_group=group),
        tag("figcaption", caption),
        id=f"figure-{kind}-{group}",
    )


def _time_source(models: list[Model]) -> str:
    measured = [m for m in models if m.speed is not None and m.speed.measured]
    if len(measured) == len(models):
        return "Time is the measured median per step times the steps."
    return "Time is that of training itself, evaluation and compilation left out."


def _depth_table(models: list[Model]) -> Raw:
    lines = [
        tag(
            "tr",
            tag("th", model.label, scope="row"),
            tag("td", each.scheme),
            tag("td", "adaptive" if each.num_steps is None else each.num_steps, class_="number"),
            tag("td", numbers.loss(each.mean), class_="number"),
            tag("td", f"{numbers.loss(each.low)} – {numbers.loss(each.high)}", class_="number"),
        )
        for model in models
        for each in model.evaluations
    ]
    return _folded(
        "Loss at other depths as a table",
        ("Model", "Scheme", "Steps", "Nats per token", "Range over seeds"),
        lines,
        "depths",
    )


def _folded(summary: str, heads: tuple[str, ...], lines: list[Raw], name: str) -> Raw:
    head = tag("tr", [tag("th", head, scope="col") for head in heads])
    table = tag("table", tag("thead", head), tag("tbody", lines))
    return tag("details", tag("summary", summary), tag("div", table, class_="scroll"), id=name)


def _speed(report: Report) -> Raw | None:
    timed = [model for model in report.models if model.speed is not None]
    if not timed:
        return None
    if all(model.speed and model.speed.measured for model in timed):
        several = len(report.records.experiments) > 1
        whose = "the models of one experiment" if several else "all models"
        source = f"Each dot is a round, measured in turn over {whose}; the bar spans the quartiles"
    else:
        source = "Each dot is a seed: time of training over its steps; the bar spans the quartiles"
    kind = {
        "program": "what the compiled training step allocates",
        "resident": "peak resident size of the process",
    }[report.memory_kind]
    return _figure(
        "speed",
        0,
        "Speed and memory",
        f"{source}, the line in it is the median. Memory is {kind}. Both axes start at zero.",
    )


def _reach(report: Report, number: int) -> Raw | None:
    """Rows are models, columns are losses to reach."""
    group, models = report.groups[number], [m for m in report.of(number) if m.reach and m.seeds]
    if not group.thresholds or not models:
        return None
    heads = [
        tag("th", f"{numbers.loss(loss)} nats", tag("small", text), scope="col", class_="number")
        for loss, text in group.thresholds.items()
    ]
    lines = []
    for model in models:
        name = (tag("i", class_=f"swatch m{model.index % len(LIGHT)}"), model.label)
        cells = [_reached((model.reach or {})[threshold]) for threshold in group.thresholds]
        lines.append(tag("tr", tag("th", name, scope="row"), cells))
    head = tag("tr", tag("th", "Validation loss", scope="col"), heads)
    suffix = f": {group.title}" if len(report.groups) > 1 else ""
    note = (
        "Training time and FLOPs, medians over the seeds that got there, off the training curves."
    )
    return tag(
        "section",
        tag("h2", f"Time to reach a loss{suffix}"),
        tag("div", tag("table", tag("thead", head), tag("tbody", lines)), class_="scroll"),
        tag("p", note, class_="note"),
        class_="reach",
    )


def _reached(reach: Reach) -> Raw:
    who = f"{reach.reached} of {reach.seeds} seeds"
    if not reach.reached:
        return tag("td", "never", tag("small", who), class_="number")
    flops = f"{numbers.short(reach.flops)} FLOPs, " if reach.flops is not None else ""
    time = "time unknown" if reach.seconds is None else f"{numbers.three(reach.seconds)} s"
    return tag("td", time, tag("small", flops + who), class_="number")


def _matrix(report: Report, number: int) -> Raw | None:
    """Row against column: difference and corrected p below the diagonal, effect above."""
    models = [m for m in report.of(number) if m.seeds]
    if len(models) < 2:
        return None
    suffix = f": {report.groups[number].title}" if len(report.groups) > 1 else ""
    head = tag(
        "tr",
        tag("td", ""),
        [tag("th", tag("span", m.label), scope="col") for m in models],
    )
    body = []
    for i, row in enumerate(models):
        cells = [_pair_cell(report, row, column, i - j) for j, column in enumerate(models)]
        name = tag(
            "th", tag("i", class_=f"swatch m{row.index % len(LIGHT)}"), row.label, scope="row"
        )
        body.append(tag("tr", name, cells))
    family = report.tests["all_pairs"]
    names = {model.label for model in models}
    size = sum(group["size"] for group in family["groups"] if names & set(group["labels"]))
    key = [
        tag("span", text, class_=f"key {kind}")
        for kind, text in (
            ("better", "row is better"),
            ("worse", "row is worse"),
            ("equivalent", f"equivalent within {family['margin']:g} nats"),
            ("no-evidence", "no evidence"),
        )
    ]
    return tag(
        "figure",
        tag("h2", f"Which differences are real{suffix}"),
        tag("p", key, class_="keys"),
        tag(
            "div",
            tag("table", tag("thead", head), tag("tbody", body), class_="matrix"),
            class_="scroll",
        ),
        tag("p", "Choose a cell to read its verdict.", class_="chosen", aria_live="polite"),
        tag(
            "figcaption",
            "Below the diagonal: difference in nats per token, row minus column, and p of the"
            f" t-test after Holm's correction over {size} pairs. Above: Hedges' g. Bold:"
            f" p ≤ {family['alpha']:g}.",
        ),
        id=f"figure-significance-{number}",
    )


def _pair_cell(report: Report, row: Model, column: Model, below: int) -> Raw:
    if below == 0:
        return tag("td", "", class_="diagonal")
    entry, sign = report.pair(row.label, column.label)
    verdict = entry["verdict"]
    kind = seen_from(entry, sign)
    content: list[Any]
    if kind == "not-testable":
        content = [numbers.ABSENT]
    elif below > 0:
        p = entry["tests"]["t"]["p_holm"]
        estimate = sign * entry["difference"]["estimate"]
        text = numbers.signed(estimate)
        content = [
            tag("b", text) if verdict["better"] else text,
            tag("small", f"p {numbers.p_value(p).replace('<', '< ')}"),
        ]
    else:
        g = entry["hedges_g"]["estimate"]
        content = [
            tag("small", numbers.ABSENT if g is None else f"g {numbers.signed(sign * g, 1)}")
        ]
    return tag("td", content, class_=f"cell {kind}", tabindex=0, data_sentence=verdict["sentence"])
