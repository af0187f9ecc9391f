"""The middle of the page: the figures, and the tables that belong to them."""

from collections.abc import Mapping, Sequence
from typing import Any

from qkvflow.report import numbers
from qkvflow.report.charts.description import Figure
from qkvflow.report.charts.markup import figure_of, swatch
from qkvflow.report.content import Model, Reach, Report
from qkvflow.report.page.markup import Raw, table, tag


def sections(report: Report, groups: Sequence[Mapping[str, Figure]]) -> Raw:
    """`groups` are the figures of each group of comparable models."""
    apart = ("speed_comparison", "significance")
    parts: list[Raw | None] = [_chips(report)]
    for number, figures in enumerate(groups):
        parts += [figure_of(figure) for name, figure in figures.items() if name not in apart]
        if any(model.evaluations for model in report.of(number)):
            parts.append(_depth_table(report.of(number)))
    speed, tests = ([figure_of(each[name]) for each in groups if name in each] for name in apart)
    reached = [_reach(report, number) for number in range(len(report.groups))]
    return tag("div", parts, speed, reached, tests)


def _chips(report: Report) -> Raw | None:
    """Which models are shown, for all figures at once."""
    if len(report.models) < 2:
        return None
    buttons = [
        tag(
            "button",
            swatch(model.index),
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


def _depth_table(models: list[Model]) -> Raw:
    heads = ("Model", "Scheme", "Steps", "Nats per token", "Range over seeds")
    rows = [
        (
            model.label,
            each.scheme,
            "adaptive" if each.num_steps is None else each.num_steps,
            numbers.loss(each.mean),
            f"{numbers.loss(each.low)} – {numbers.loss(each.high)}",
        )
        for model in models
        for each in model.evaluations
    ]
    summary = tag("summary", "Loss at other depths as a table")
    return tag("details", summary, table(heads, rows, words=2), id="depths")


def _reach(report: Report, number: int) -> Raw | None:
    """Rows are models, columns are losses to reach."""
    group, models = report.groups[number], [m for m in report.of(number) if m.reach and m.seeds]
    if not group.thresholds or not models:
        return None
    wanted = group.thresholds.items()
    heads = [[f"{numbers.loss(loss)} nats", tag("small", text)] for loss, text in wanted]
    rows = [
        [
            [swatch(model.index), model.label],
            *(_reached((model.reach or {})[threshold]) for threshold in group.thresholds),
        ]
        for model in models
    ]
    note = (
        "Training time and FLOPs, medians over the seeds that got there, off the training curves."
    )
    return tag(
        "section",
        tag("h2", f"Time to reach a loss{report.suffix(number)}"),
        table(["Validation loss", *heads], rows),
        tag("p", note, class_="note"),
        class_="reach",
    )


def _reached(reach: Reach) -> list[Any]:
    who = f"{reach.reached} of {reach.seeds} seeds"
    if not reach.reached:
        return ["never", tag("small", who)]
    flops = f"{numbers.short(reach.flops)} FLOPs, " if reach.flops is not None else ""
    time = "time unknown" if reach.seconds is None else f"{numbers.three(reach.seconds)} s"
    return [time, tag("small", flops + who)]
