"""`conversion.html`: what a conversion kept and lost, from `conversion.json` alone."""

import json
from pathlib import Path
from typing import Any

from qkvflow.report import numbers
from qkvflow.report.charts.description import Figure, Plot, Rule, Series, page_data, values
from qkvflow.report.charts.markup import figure_of, shades
from qkvflow.report.charts.scales import axis
from qkvflow.report.page.markup import Raw, table, tag
from qkvflow.report.page.shell import document

JSON, PAGE = "conversion.json", "conversion.html"


def build_conversion(directory: str | Path) -> Path:
    """Write the page from the numbers beside it."""
    found = json.loads((Path(directory) / JSON).read_text("utf-8"))
    figures = [each for each in (_losses(found), _residuals(found)) if each is not None]
    page = Path(directory) / PAGE
    text = document(
        f"{found['source']['model']} as {found['field']} – qkvflow conversion",
        _header(found),
        tag("main", [figure_of(each) for each in figures], _sizes(found), _matrices(found)),
        data=page_data(figures),
        style=shades(),
    )
    page.write_text(text, encoding="utf-8", newline="\n")
    return page


def sizes_table(found: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and rows: the original, then the field at every size; the chosen one is marked."""
    heads = (found["size_name"] or "", "parameters", "of which blocks", "residual", "nats/token")
    source = found["source"]
    rows = [("original", *_counts(source), "0", _nats(source))]
    for each in found["sizes"]:
        name = "fitted" if each["size"] is None else str(each["size"])
        chosen = " (chosen)" if each["chosen"] and each["size"] is not None else ""
        residual = f"{each['residuals']['all']:.4f}"
        rows.append((name + chosen, *_counts(each), residual, _nats(each)))
    return heads, rows


def _counts(each: dict[str, Any]) -> tuple[str, str]:
    return numbers.short(each["parameters"]), numbers.short(each["blocks"])


def _nats(each: dict[str, Any]) -> str:
    return "" if each["nats"] is None else f"{each['nats']:.4f}"


def _header(found: dict[str, Any]) -> Raw:
    source, text = found["source"], found["data"]
    facts = [
        f"shared base: {found['base']}",
        f"{source['layers']} layers",
        f"loss on {text['spec']}, {text['split']}" if text else "no text: no losses",
    ]
    return tag(
        "header",
        tag("p", "qkvflow conversion", class_="kicker"),
        tag("h1", f"{source['model']} as {found['field']}"),
        tag("p", " · ".join(facts), class_="facts"),
        tag(
            "p", "Before any training. Residuals are |W' − W| / |W| over all layers.", class_="note"
        ),
    )


def _losses(found: dict[str, Any]) -> Figure | None:
    seen = [each for each in found["sizes"] if each["nats"] is not None]
    if not seen:
        return None
    before = found["source"]["nats"]
    x = [each["blocks"] for each in seen]
    series = Series(
        found["field"],
        0,
        values(x),
        values([each["nats"] for each in seen]),
        look="dots",
        tips=tuple(_tip(found, each) for each in seen),
    )
    plot = Plot(
        "",
        axis("parameters of the blocks", [*x, found["source"]["blocks"]], log=True),
        axis("loss, nats per token", [before, *(each["nats"] for each in seen)], digits=4),
        (series,),
        rules=(Rule(before, "the original"),),
    )
    caption = "The fitted model at every size, before training; the line is the original's loss."
    return Figure("losses", "What is lost of the predictions", caption, (plot,), columns=1)


def _tip(found: dict[str, Any], each: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    size = () if each["size"] is None else ((found["size_name"], str(each["size"])),)
    return (*size, ("blocks", numbers.short(each["blocks"])), ("loss", _nats(each)))


def _residuals(found: dict[str, Any]) -> Figure | None:
    sizes = [each for each in found["sizes"] if each["size"] is not None]
    if len(sizes) < 2:
        return None
    x = [float(each["size"]) for each in sizes]
    names = [name for name in sizes[0]["residuals"] if name != "all"]
    series = tuple(
        Series(name, i, values(x), values([each["residuals"][name] for each in sizes]), look="dots")
        for i, name in enumerate(names)
    )
    plot = Plot(
        "",
        axis(found["size_name"], x, log=True, marks=x),
        axis("relative residual", [v for s in series for v in s.y], zero=True),
        series,
        legend=len(series) > 1,
    )
    caption = "By matrix; 0 is the original and 1 is as far from it as nothing at all."
    return Figure("residuals", "What is lost of the weights", caption, (plot,), columns=1)


def _sizes(found: dict[str, Any]) -> Raw:
    heads, rows = sizes_table(found)
    return tag("section", tag("h2", "Sizes"), table(heads, rows))


def _matrices(found: dict[str, Any]) -> Raw:
    [chosen] = [each for each in found["sizes"] if each["chosen"]]
    rows = [(name, f"{value:.6f}") for name, value in chosen["residuals"].items()]
    title = "Residual of every matrix in the model that was written"
    return tag("section", tag("h2", title), table(("matrix", "residual"), rows))
