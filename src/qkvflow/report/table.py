"""The one table: the same rows for the page, the terminal, LaTeX and the CSV file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qkvflow.report.content import Model, Report
from qkvflow.report.costs import fastest
from qkvflow.report.findings import beside_trigram, best


@dataclass(frozen=True)
class Row:
    """A model, an n-gram or the floor of the data. What is not known is None."""

    kind: str
    label: str
    group: int
    loss: float | None
    interval: Mapping[str, Any] | None
    bits: float | None
    model: Model | None = None
    best: frozenset[str] = frozenset()
    beside_trigram: str | None = None


def rows(report: Report) -> list[Row]:
    """Group by group: models by loss, then n-grams by order, then the floor."""
    made = []
    for number, group in enumerate(report.groups):
        winner = best(report, number)
        quickest = fastest(report.of(number), report.tests["all_pairs"]["alpha"])
        for model in report.of(number):
            marks = {"loss", "bits"} if model.label == winner else set()
            if model.label == quickest:
                marks.add("ms")
            nats = model.metric(report.metric)
            made.append(
                Row(
                    kind="model",
                    label=model.label,
                    group=number,
                    loss=nats["mean"],
                    interval=nats["t_interval"],
                    bits=model.metric(report.metric, "bits_per_byte")["mean"],
                    model=model,
                    best=frozenset(marks),
                    beside_trigram=beside_trigram(model, group, report.metric),
                )
            )
        for baseline in group.baselines:
            if baseline.losses[report.metric] is not None:
                made.append(
                    Row(
                        kind="floor" if baseline.order is None else "ngram",
                        label=baseline.name,
                        group=number,
                        loss=baseline.losses[report.metric],
                        interval=None,
                        bits=baseline.bits_per_byte[report.metric],
                    )
                )
    return made
