"""From the saved arrays of an analysis to its page and figures."""

from dataclasses import dataclass
from pathlib import Path

from qkvflow.errors import UserError
from qkvflow.report.analysis.content import read
from qkvflow.report.analysis.default import default_section
from qkvflow.report.analysis.page import to_html
from qkvflow.report.analysis.sections import SECTIONS
from qkvflow.report.charts.description import Figure
from qkvflow.report.charts.files import save


@dataclass(frozen=True)
class AnalysisPaths:
    """What was written."""

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
    drawn = [part for each in sections for part in each.parts if isinstance(part, Figure)]
    html = directory / "analysis.html"
    try:
        html.write_text(to_html(content, sections), encoding="utf-8", newline="\n")
        return AnalysisPaths(html, save({each.name: each for each in drawn}, directory / "figures"))
    except OSError as error:
        raise UserError(
            f"cannot write {directory}: {error.strerror}; choose another --out"
        ) from None
