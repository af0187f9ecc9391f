"""From the saved arrays of an analysis to its page and figures."""

from dataclasses import dataclass
from pathlib import Path

from qkvflow.errors import UserError
from qkvflow.report.analysis.charts import Numbers, Section
from qkvflow.report.analysis.content import read
from qkvflow.report.analysis.default import default_section
from qkvflow.report.analysis.page import to_html
from qkvflow.report.analysis.sections import SECTIONS


@dataclass(frozen=True)
class AnalysisPaths:
    html: Path
    figures: tuple[Path, ...] | None
    """None without matplotlib."""


def build_analysis(directory: str | Path) -> AnalysisPaths:
    """Write `analysis.html` and `figures/` from `analysis.json` and the arrays beside it."""
    directory = Path(directory)
    content = read(directory)
    sections = [
        SECTIONS[name](content) if name in SECTIONS else default_section(name, content)
        for name in content.parts
    ]
    html = directory / "analysis.html"
    try:
        html.write_text(to_html(content, sections), encoding="utf-8", newline="\n")
        return AnalysisPaths(html, _figures(sections, directory / "figures"))
    except OSError as error:
        raise UserError(
            f"cannot write {directory}: {error.strerror}; choose another --out"
        ) from None


def _figures(sections: list[Section], directory: Path) -> tuple[Path, ...] | None:
    try:
        from qkvflow.report.analysis.printed import figure_of
        from qkvflow.report.figures.style import save
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        return None
    directory.mkdir(exist_ok=True)
    charts = [part for each in sections for part in each.parts if not isinstance(part, Numbers)]
    return tuple(
        path
        for chart in charts
        for path in save(lambda chart=chart: figure_of(chart), directory / chart.name)
    )
