"""The table and the verdicts in a terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from qkvflow.report import numbers
from qkvflow.report.build import ReportPaths
from qkvflow.report.charts.files import WITHOUT
from qkvflow.report.content import Report
from qkvflow.report.findings import before_answer, cautions, headlines, leading_verdicts
from qkvflow.report.probes import probes
from qkvflow.report.table import Row, rows


def print_summary(paths: ReportPaths, console: Console | None = None) -> None:
    """Headline, table, verdicts, serious warnings, and where the report is."""
    report = paths.report
    if console is None:
        console = Console(width=None if Console().is_terminal else 120)
    console.print()
    for line in headlines(report):
        console.print(Text(line, style="bold"))
    for number, group in enumerate(report.groups):
        title = group.title if len(report.groups) > 1 else None
        here = [row for row in rows(report) if row.group == number]
        console.print()
        console.print(_table(report, here, title))
    for each in probes(report):
        console.print()
        table = Table(box=None, pad_edge=False, header_style="bold", title=each.title)
        for place, heading in enumerate(each.heads):
            table.add_column(heading, justify="right" if place else "left")
        for cells in each.rows:
            table.add_row(*map(Text, cells))
        console.print(table)
        console.print(Text(each.note, style="dim"))
    console.print()
    questions = [pair for question in report.questions for pair in question.pairs]
    for pair in questions or leading_verdicts(report):
        console.print(Text(f"• {before_answer(pair['name'])}{pair['verdict']['sentence']}"))
    serious = [caution for caution in cautions(report) if caution.serious]
    if serious:
        console.print()
    for caution in serious:
        console.print(Text(f"! {caution.text}", style="yellow"))
    if paths.figures is None:
        console.print(Text(f"! {WITHOUT}"))
    console.print()
    console.print(f"report: {escape(str(paths.html))}", soft_wrap=True, highlight=False)


def _table(report: Report, found: list[Row], title: str | None) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    table.add_column("model", overflow="fold")
    for heading in (f"{report.metric} loss", "95 % interval", "bits/byte", "params"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("FLOPs/token", "ms/step", "memory", "seeds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found:
        table.add_row(*_cells(row), style=None if row.kind == "model" else "dim")
    return table


def _cells(row: Row) -> list[Text]:
    flag = {"worse": " (no better than a trigram)", "unclear": " (near a trigram)", None: ""}
    model = row.model
    cells = [
        row.label + flag[row.beside_trigram],
        numbers.loss(row.loss) + (" *" if "loss" in row.best else ""),
        numbers.interval(row.interval) or "",
        numbers.loss(row.bits),
    ]
    if model is not None:
        failed = len(model.summary["failed"])
        cells += [
            numbers.short(model.params["total"]),
            numbers.short(model.flops_per_token),
            numbers.milliseconds(model.speed.median if model.speed else None),
            numbers.memory(model.memory),
            f"{len(model.seeds)}" + (f" ({failed} failed)" if failed else ""),
        ]
    return [Text(cell) for cell in cells]
