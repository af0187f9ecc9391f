"""A depth sweep as a table, a spreadsheet and a figure. Points are plain dictionaries, one for each
setting, with the fields of `qkvflow.evaluation.sweep.Point`."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from qkvflow.report import numbers
from qkvflow.report.charts.files import save
from qkvflow.report.figures.sweep import quality_against_compute

Points = Sequence[Mapping[str, Any]]


def setting(point: Mapping[str, Any]) -> str:
    """'heun, 6 steps' or 'adaptive, 0.001'."""
    if point["num_steps"] is None:
        return f"{point['scheme']}, {point['tolerance']:g}"
    plural = "" if point["num_steps"] == 1 else "s"
    return f"{point['scheme']}, {point['num_steps']} step{plural}"


def to_table(points: Points) -> Table:
    """One row for each setting; a star marks the setting the model was trained in."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("setting", no_wrap=True)
    for heading in ("nats/token", "±", "bits/byte", "evaluations", "FLOPs/token", "ms/token"):
        table.add_column(heading, justify="right", no_wrap=True)
    for point in points:
        mark = " *" * point["trained"] + " (gave up)" * (not point["reached"])
        cells = [
            setting(point) + mark,
            numbers.loss(point["nats"]),
            numbers.loss(point["standard_error"]),
            numbers.loss(point["bits_per_byte"]),
            f"{point['evaluations']:.4g}",
            numbers.short(point["flops_per_token"]),
            numbers.milliseconds(point["ms_per_token"]),
        ]
        table.add_row(*(Text(cell) for cell in cells))
    return table


def to_csv(points: Points) -> str:
    """Every field with every digit; empty cells are what does not apply."""
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=list(points[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(points)
    return file.getvalue()


def draw_sweep(points: Points, title: str, directory: Path) -> tuple[Path, ...] | None:
    """`sweep.png` and `sweep.pdf`, or None without matplotlib."""
    return save({"sweep": quality_against_compute(points, title)}, directory)
