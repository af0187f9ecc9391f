"""`analysis.html`: what was found, in words, figures and tables."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from qkvflow.report import numbers
from qkvflow.report.analysis.charts import (
    Cells,
    Heat,
    Lines,
    Numbers,
    Plane,
    Section,
    Words,
    plain,
    visible,
)
from qkvflow.report.analysis.content import Content
from qkvflow.report.page.markup import Raw, tag
from qkvflow.report.page.shell import asset, document
from qkvflow.report.palette import DEPTH, LESS, LIGHT, MORE

SHADES = 20


def to_html(content: Content, sections: Sequence[Section]) -> str:
    drawn = [part for each in sections for part in each.parts if isinstance(part, _DRAWN)]
    data = {
        "colours": len(LIGHT),
        "depth": DEPTH,
        "around": [LESS, MORE],
        "charts": {part.name: _chart(part) for part in drawn},
    }
    name = content.summary["model"]
    return document(
        f"Inside {name} – qkvflow analysis",
        _header(content, sections),
        tag("main", [_section(content, each) for each in sections], _files(content)),
        data=data,
        scripts=[
            asset("qkvflow.report.page", "core.js"),
            asset("qkvflow.report.analysis", "charts.js"),
        ],
        style=_shades() + asset("qkvflow.report.analysis", "analysis.css"),
    )


_DRAWN = (Lines, Plane, Heat)


def _chart(part: Any) -> dict[str, Any]:
    return plain({"kind": type(part).__name__.lower(), **dataclasses.asdict(part)})


def _shades() -> str:
    """Backgrounds from nothing to the accent: a style attribute would not be allowed."""
    return f":root{{--shade:{MORE}}}" + "".join(
        f".s{i}{{background:color-mix(in srgb,var(--shade) {75 * i // SHADES}%,var(--paper))}}"
        for i in range(SHADES + 1)
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


def _part(part: Any) -> Raw:
    match part:
        case Numbers():
            inside, caption = _table(part), part.note
        case Words():
            inside, caption = _words(part), part.caption
        case Cells():
            inside, caption = _cells(part), part.caption
        case _:
            inside, caption = tag("div", class_="plot", data_chart=part.name), part.caption
    return tag(
        "figure",
        tag("h3", part.title),
        inside,
        tag("figcaption", caption),
        id=f"figure-{part.name}" if not isinstance(part, Numbers) else None,
    )


def _scroll(table: Raw, label: str) -> Raw:
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=label)


def _table(part: Numbers) -> Raw:
    heads = [
        tag("th", head, scope="col", class_="number" if i else None)
        for i, head in enumerate(part.heads)
    ]
    lines = [
        tag("tr", tag("th", row[0], scope="row"), [tag("td", c, class_="number") for c in row[1:]])
        for row in part.rows
    ]
    table = tag("table", tag("thead", tag("tr", heads)), tag("tbody", lines))
    return _scroll(table, part.title)


def _words(part: Words) -> Raw:
    spans = []
    for index, piece in enumerate(part.pieces):
        text = f"token {index + 1}, {visible(piece)}: {numbers.three(float(part.values[index]))}"
        spans.append(
            tag(
                "span",
                visible(piece),
                class_=f"{_shade(part.shades[index])}{' marked' if index == part.marked else ''}",
                tabindex=0,
                data_tip=f"{text} {part.unit}",
            )
        )
        if "\n" in piece:
            spans.append(tag("br"))
    reached = part.values[: part.marked + 1]
    key = tag(
        "p",
        f"{numbers.three(float(reached.min()))} {part.unit} ",
        [tag("i", class_=f"s{i}") for i in range(0, SHADES + 1, 2)],
        f" {numbers.three(float(reached.max()))} {part.unit}",
        class_="scale",
    )
    return tag("div", tag("p", spans, class_="words"), key)


def _cells(part: Cells) -> Raw:
    head = tag("tr", tag("th", "t", scope="col"), [tag("th", c, scope="col") for c in part.columns])
    lines = []
    for row, name in enumerate(part.rows):
        cells = [
            tag(
                "td",
                str(part.texts[row, column]),
                class_=_shade(part.shades[row, column]),
                tabindex=0,
                data_tip=f"after {part.columns[column]} at t = {name}: {part.texts[row, column]}, "
                f"p = {part.shades[row, column]:.3f}",
            )
            for column in range(len(part.columns))
        ]
        lines.append(tag("tr", tag("th", name, scope="row"), cells))
    table = tag("table", tag("thead", head), tag("tbody", lines), class_="lens")
    return _scroll(table, part.title)


def _shade(share: float) -> str:
    return f"s{round(SHADES * min(max(float(share), 0.0), 1.0))}"


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
