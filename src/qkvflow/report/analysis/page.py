"""`analysis.html`: what was found, in words, figures and tables."""

from collections.abc import Sequence

from qkvflow.report import numbers
from qkvflow.report.analysis.content import Content
from qkvflow.report.analysis.parts import Numbers, Section
from qkvflow.report.charts.description import Figure, page_data
from qkvflow.report.charts.markup import figure_of, shades
from qkvflow.report.page.markup import Raw, table, tag
from qkvflow.report.page.shell import asset, document


def to_html(content: Content, sections: Sequence[Section]) -> str:
    drawn = [part for each in sections for part in each.parts if isinstance(part, Figure)]
    return document(
        f"Inside {content.summary['model']} – qkvflow analysis",
        _header(content, sections),
        tag("main", [_section(content, each) for each in sections], _files(content)),
        data=page_data(drawn),
        style=shades() + asset("qkvflow.report.analysis", "analysis.css"),
    )


def _header(content: Content, sections: Sequence[Section]) -> Raw:
    about = content.summary
    facts = [
        f"step {about['step']:,}" if about.get("step") is not None else None,
        f"{about['num_steps']} depth steps",
        about["scheme"],
        f"horizon {about['horizon']:g}",
        f"{numbers.short(about['parameters'])} parameters",
        f"text of {len(content.pieces)} tokens",
    ]
    links = [tag("li", tag("a", each.title, href=f"#{each.name}")) for each in sections]
    return tag(
        "header",
        tag("p", "qkvflow analysis", class_="kicker"),
        tag("h1", f"Inside {about['model']}"),
        tag("p", " · ".join(fact for fact in facts if fact), class_="facts"),
        [tag("p", note, class_="note") for note in about.get("notes", [])],
        tag("nav", tag("ul", links), aria_label="Sections"),
    )


def _section(content: Content, section: Section) -> Raw:
    found = content.summary["findings"][section.name]
    return tag(
        "section",
        tag("h2", section.title),
        tag("p", section.lead, class_="note"),
        tag("ul", [tag("li", line, class_="verdict") for line in found], class_="verdicts"),
        [_part(part) for part in section.parts],
        id=section.name,
    )


def _part(part: Figure | Numbers) -> Raw:
    if isinstance(part, Figure):
        return figure_of(part, "h3")
    parts = tag("h3", part.title), table(part.heads, part.rows), tag("figcaption", part.note)
    return tag("figure", parts)


def _files(content: Content) -> Raw:
    names = ", ".join(f"{name}.npz" for name in content.parts)
    return tag(
        "section",
        tag("h2", "The numbers"),
        tag(
            "p",
            f"Beside this page: {names} with every array (numpy.load), analysis.json with these "
            "sentences, and the figures as PNG and PDF in figures/.",
            class_="note",
        ),
        tag("details", tag("summary", "The text"), tag("pre", content.summary["text"])),
        id="files",
    )
