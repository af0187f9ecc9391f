"""The matrix of tests: difference and corrected p below the diagonal, Hedges' g above."""

from qkvflow.report import numbers
from qkvflow.report.charts.description import Cell, Figure, Grid
from qkvflow.report.content import Model, Report, seen_from


def significance(report: Report, number: int) -> Figure | None:
    models = [model for model in report.of(number) if model.seeds]
    if len(models) < 2:
        return None
    family = report.tests["all_pairs"]
    names = tuple(model.label for model in models)
    cells = tuple(
        tuple(
            None if i == j else _cell(report, row, column, i > j) for j, column in enumerate(models)
        )
        for i, row in enumerate(models)
    )
    keys = (
        ("better", "row is better"),
        ("worse", "row is worse"),
        ("equivalent", f"equivalent within {family['margin']:g} nats"),
        ("no-evidence", "no evidence"),
    )
    labels = {model.label for model in models}
    size = sum(group["size"] for group in family["groups"] if labels & set(group["labels"]))
    note = (
        "Below the diagonal: difference in nats per token, row minus column, and p of the t-test\n"
        f"after Holm's correction over {size} pairs. Above: Hedges' g."
        f" Bold: p ≤ {family['alpha']:g}."
    )
    indices = tuple(model.index for model in models)
    return Figure(
        f"significance-{number}",
        f"Which differences are real{report.suffix(number)}",
        note.replace("\n", " "),
        (Grid("", names, names, cells, indices=indices, keys=keys, note=note),),
        columns=1,
    )


def _cell(report: Report, row: Model, column: Model, below: bool) -> Cell:
    entry, sign = report.pair(row.label, column.label)
    verdict, kind = entry["verdict"], seen_from(entry, sign)
    lines: tuple[str, ...] = (numbers.ABSENT,)
    g = entry["hedges_g"]["estimate"]
    if kind != "not-testable" and below:
        p = numbers.p_value(entry["tests"]["t"]["p_holm"]).replace("<", "< ")
        lines = (numbers.signed(sign * entry["difference"]["estimate"]), f"p {p}")
    elif kind != "not-testable" and g is not None:
        lines = (f"g {numbers.signed(sign * g, 1)}",)
    return Cell(lines, kind, bold=verdict["better"] is not None, tip=verdict["sentence"])
