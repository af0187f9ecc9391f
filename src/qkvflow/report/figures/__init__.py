"""Figures for print, as PNG and PDF. One file per figure; each draws from the report alone."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from qkvflow.report.content import Report
from qkvflow.report.figures.efficiency import efficiency_with_error
from qkvflow.report.figures.losses import statistical_performance
from qkvflow.report.figures.matrix import significance
from qkvflow.report.figures.speed import speed_comparison
from qkvflow.report.figures.style import save
from qkvflow.report.figures.training import training_curves

FIGURES: dict[str, Callable[[Report], Figure]] = {
    "statistical_performance": statistical_performance,
    "efficiency_with_error": efficiency_with_error,
    "speed_comparison": speed_comparison,
    "training_curves": training_curves,
    "significance": significance,
}


def draw(report: Report, directory: Path) -> tuple[Path, ...]:
    """Write every figure twice and return the paths."""
    directory.mkdir(parents=True, exist_ok=True)
    return tuple(
        path
        for name, function in FIGURES.items()
        for path in save(lambda function=function: function(report), directory / name)
    )
