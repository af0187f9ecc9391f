"""Figures as markup: a place for what the scripts draw; tables and coloured text as they stand."""

from typing import Any

from qkvflow.report.charts.description import Cell, Figure, Grid, Words
from qkvflow.report.page.markup import Raw, tag
from qkvflow.report.palette import LIGHT, MORE

SHADES = 20
PROMPT = "Choose a cell to read its verdict."


def figure_of(figure: Figure, heading: str = "h2") -> Raw:
    parts: list[Any] = [tag(heading, figure.title)]
    if figure.scripted:
        parts += [tag("div", class_="controls"), tag("div", class_="plot", data_figure=figure.name)]
    for panel in figure.panels:
        if isinstance(panel, Grid):
            parts.append(_grid(panel, figure.title))
        elif isinstance(panel, Words):
            parts.append(_words(panel))
    return tag("figure", parts, tag("figcaption", figure.caption), id=f"figure-{figure.name}")


def swatch(index: int) -> Raw:
    return tag("i", class_=f"swatch m{index % len(LIGHT)}")


def shades() -> str:
    """Backgrounds from nothing to the accent: a style attribute would not be allowed."""
    return f":root{{--shade:{MORE}}}" + "".join(
        f".s{i}{{background:color-mix(in srgb,var(--shade) {75 * i // SHADES}%,var(--paper))}}"
        for i in range(SHADES + 1)
    )


def _shade(share: float | None) -> str:
    return f"s{round(SHADES * min(max(share or 0.0, 0.0), 1.0))}"


def _grid(grid: Grid, title: str) -> list[Raw | None]:
    corner = tag("th", grid.corner, scope="col") if grid.corner else tag("td", "")
    head = tag("tr", corner, [tag("th", c, scope="col") for c in grid.columns])
    body = []
    for i, (name, cells) in enumerate(zip(grid.rows, grid.cells, strict=True)):
        mark = swatch(grid.indices[i]) if grid.indices else None
        body.append(tag("tr", tag("th", mark, name, scope="row"), [_cell(c) for c in cells]))
    look = "matrix" if grid.keys else "lens"
    table = tag("table", tag("thead", head), tag("tbody", body), class_=look)
    if not grid.keys:
        return [tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=title)]
    keys = [tag("span", text, class_=f"key {tint}") for tint, text in grid.keys]
    return [
        tag("p", keys, class_="keys"),
        tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=title),
        tag("p", PROMPT, class_="chosen", aria_live="polite"),
    ]


def _cell(cell: Cell | None) -> Raw:
    if cell is None:
        return tag("td", "", class_="diagonal")
    first, *rest = cell.lines
    text = [tag("b", first) if cell.bold else first, [tag("small", line) for line in rest]]
    look = f"cell {cell.tint}" if cell.tint else f"cell {_shade(cell.shade)}"
    return tag("td", text, class_=look, tabindex=0, data_tip=cell.tip)


def _words(words: Words) -> Raw:
    spans = []
    for i, piece in enumerate(words.pieces):
        look = _shade(words.shades[i]) + (" marked" if i == words.marked else "")
        spans.append(tag("span", piece, class_=look, tabindex=0, data_tip=words.tips[i]))
        if i in words.breaks:
            spans.append(tag("br"))
    steps = [tag("i", class_=f"s{i}") for i in range(0, SHADES + 1, 2)]
    key = tag("p", f"{words.ends[0]} ", steps, f" {words.ends[1]}", class_="scale")
    return tag("div", tag("p", spans, class_="words"), key)
