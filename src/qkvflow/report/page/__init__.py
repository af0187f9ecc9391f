"""`report.html`: one page that needs nothing but itself.

Figures are drawn by the page's own script from the JSON it carries, so that they fit the width of
a phone, answer to touch and follow the light.
"""

from qkvflow.report.content import Report
from qkvflow.report.page import details, opening, plots
from qkvflow.report.page.data import chart_data
from qkvflow.report.page.markup import tag
from qkvflow.report.page.shell import asset, document

SCRIPTS = ("core.js", "rows.js", "planes.js", "page.js")


def to_html(report: Report) -> str:
    """The whole page."""
    main = tag(
        "main",
        opening.sections(report),
        plots.sections(report),
        details.sections(report),
    )
    return document(
        f"{opening.question(report)} – qkvflow report",
        opening.header(report),
        main,
        data=chart_data(report),
        scripts=[asset("qkvflow.report.page", name) for name in SCRIPTS],
    )
