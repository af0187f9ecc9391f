"""The whole page, and the figures on it.

Figures are drawn by the page's own script from the JSON it carries, so that they fit the width of
a phone, answer to touch and follow the light.
"""

from qkvflow.report.charts.description import page_data
from qkvflow.report.content import Report
from qkvflow.report.figures import of_group
from qkvflow.report.page import details, opening, plots
from qkvflow.report.page.markup import tag
from qkvflow.report.page.shell import document


def to_html(report: Report) -> str:
    groups = [of_group(report, number) for number in range(len(report.groups))]
    main = tag(
        "main",
        opening.sections(report),
        plots.sections(report, groups),
        details.sections(report),
    )
    return document(
        f"{opening.question(report)} – qkvflow report",
        opening.header(report),
        main,
        data=page_data(figure for group in groups for figure in group.values()),
    )
