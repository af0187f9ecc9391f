"""A coordinate check as a figure and a page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkvflow.report.charts.description import Figure, Plot, Series, page_data, values
from qkvflow.report.charts.files import save
from qkvflow.report.charts.markup import figure_of
from qkvflow.report.charts.scales import axis
from qkvflow.report.page.markup import tag
from qkvflow.report.page.shell import document

FLAT = 0.25
"""Slopes up to here are called flat."""


def verdict(content: Mapping[str, Any]) -> str:
    """What the slopes say, in a sentence."""
    name, slope = max(content["slopes"].items(), key=lambda each: abs(each[1]))
    how = f"{content['parametrization']}, {content['optimiser']}"
    said = f"{how}: what {content['updates']} updates"
    if abs(slope) <= FLAT:
        return f"{said} change is about as large at every width (slopes up to {abs(slope):.2f})"
    way = "grows" if slope > 0 else "shrinks"
    return f"{said} change of the {name} {way} as the width to the power {slope:.2f}"


def coordinates(content: Mapping[str, Any]) -> Figure:
    panels = []
    seen = [v for rows in content["changes"].values() for row in rows for v in row]
    y = axis("root mean square of the change", seen, log=True, pad=0.05)
    widths = [float(width) for width in content["widths"]]
    x = axis("d_model", widths, log=True, marks=widths)
    for name, rows in content["changes"].items():
        series = [
            Series(
                f"after {update + 1} update{'s' * (update > 0)}",
                update,
                values(content["widths"]),
                values([row[update] for row in rows]),
                look="dots",
            )
            for update in range(content["updates"])
        ]
        title = f"{name}: slope {content['slopes'][name]:.2f}"
        panels.append(Plot(title, x, y, tuple(series), legend=True))
    caption = "What updates change of the states and the logits of the same tokens, by width."
    return Figure("coordinates", verdict(content), caption, tuple(panels))


def build_coordinates(content: Mapping[str, Any], directory: Path) -> Path:
    """Write `coordinates.html` and the figure."""
    figure = coordinates(content)
    page = document(
        "qkvflow coordinate-check",
        tag(
            "header",
            tag("p", "qkvflow coordinate-check", class_="kicker"),
            tag("h1", f"Activations against width, {content['parametrization']}"),
        ),
        tag("main", tag("section", figure_of(figure))),
        data=page_data([figure]),
    )
    path = directory / "coordinates.html"
    path.write_text(page, encoding="utf-8", newline="\n")
    save({figure.name: figure}, directory)
    return path
