"""The figures of a comparison, from a report to descriptions: one file for each figure.

A figure function takes the report and the number of a group of comparable models, and returns None
where there is nothing to show. Speed compares across groups and is drawn once.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from qkvflow.report.charts.description import Figure
from qkvflow.report.content import Report
from qkvflow.report.figures.depth import depth
from qkvflow.report.figures.efficiency import efficiency
from qkvflow.report.figures.losses import losses
from qkvflow.report.figures.matrix import significance
from qkvflow.report.figures.speed import speed
from qkvflow.report.figures.training import curves


@dataclass(frozen=True)
class Kind:
    """A figure function, and what to say on paper where it has nothing to show."""

    make: Callable[[Report, int], Figure | None]
    empty: str
    once: bool = False


NO_LOSS = "No finished run has a {metric} loss."
# By the names of the printed files.
FIGURES = {
    "statistical_performance": Kind(losses, NO_LOSS),
    "efficiency_with_error": Kind(efficiency, NO_LOSS),
    "training_curves": Kind(curves, "No run left a training curve."),
    "other_depths": Kind(depth, "No model was evaluated at other depths."),
    "speed_comparison": Kind(speed, "No run says how long it took.", once=True),
    "significance": Kind(significance, "Fewer than two models have results: no pair to test."),
}


def of_group(report: Report, number: int) -> dict[str, Figure]:
    """The figures of one group of comparable models; the first one has those of all."""
    made = {
        name: kind.make(report, number)
        for name, kind in FIGURES.items()
        if number == 0 or not kind.once
    }
    return {name: figure for name, figure in made.items() if figure is not None}


def printed(report: Report) -> dict[str, Figure]:
    """Every figure for print, the panels of all groups on one sheet."""
    groups = [of_group(report, number) for number in range(len(report.groups))]
    sheets = {}
    for name, kind in FIGURES.items():
        found = [(report.groups[i], group[name]) for i, group in enumerate(groups) if name in group]
        if not found:
            empty = kind.empty.format(metric=report.metric)
            sheets[name] = Figure(name, "", "", (), empty=empty)
        elif len(found) == 1:
            sheets[name] = found[0][1]
        else:
            panels = [
                replace(panel, title=f"{group.title}\n{panel.title}".strip())
                for group, figure in found
                for panel in figure.panels
            ]
            title = found[0][1].title.partition(": ")[0]
            sheets[name] = replace(found[0][1], title=title, panels=tuple(panels))
    return sheets
