"""From experiment directories to every file of the report."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qkvflow.errors import UserError
from qkvflow.records import Records, collect
from qkvflow.report.charts.files import WITHOUT, can_print, save
from qkvflow.report.content import Report
from qkvflow.report.figures import printed
from qkvflow.report.gather import gather, named_pairs, plans_of
from qkvflow.report.latex import to_latex
from qkvflow.report.page.whole import to_html
from qkvflow.report.spreadsheet import to_csv
from qkvflow.statistics import write_statistics


@dataclass(frozen=True)
class ReportPaths:
    """What was written, and the report it was written from."""

    html: Path
    csv: Path
    tex: Path
    statistics: tuple[Path, Path]
    figures: tuple[Path, ...] | None
    """None without matplotlib."""
    report: Report


def build_report(
    experiment_dirs: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    metric: str = "test",
    margin: float = 0.01,
) -> ReportPaths:
    """Compute the statistics of the records again and write the report.

    One experiment gets its report in its own directory unless `out` says otherwise; several are
    merged, into `out`. Whatever is missing is named in the report, matplotlib included.
    """
    records = collect(experiment_dirs)
    if out is None:
        out, *others = records.experiments
        if others:
            raise UserError("say where the report of several experiments goes with --out DIR")
    directory = Path(out)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the directory {directory}: {error.strerror}") from None
    report, paths = analyse(records, directory, metric=metric, margin=margin)
    html, csv, tex = (
        _write(directory / name, text)
        for name, text in (
            ("report.html", to_html(report)),
            ("results.csv", to_csv(report)),
            ("results_table.tex", to_latex(report)),
        )
    )
    return ReportPaths(
        html=html,
        csv=csv,
        tex=tex,
        statistics=paths,
        figures=save(printed(report), directory / "figures"),
        report=report,
    )


def analyse(
    records: Records,
    directory: Path,
    *,
    metric: str = "test",
    margin: float = 0.01,
    pairs: Sequence[tuple[str, str, str]] = (),
) -> tuple[Report, tuple[Path, Path]]:
    """The content of a report; of its files, those of the statistics alone are written.

    `pairs` (name, label a, label b) are tested in place of those of the plans' questions.
    """
    missing = [] if can_print() else [WITHOUT]
    plans = plans_of(records, missing)
    pairs = pairs or named_pairs(records, plans, missing)
    paths = write_statistics(directory, records, metric=metric, margin=margin, pairs=pairs or None)
    summary, tests = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
    return gather(directory, records, summary, tests, plans, missing, metric=metric), paths


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="\n")
    return path
