"""The page of a scaling law from `scaling.json`: losses with the fitted curves, what a model needs
to reach another's loss, and what the fits leave over."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkvflow.digests import read_sealed
from qkvflow.report import numbers
from qkvflow.report.charts.description import Figure, Plot, Series, page_data, values
from qkvflow.report.charts.files import save
from qkvflow.report.charts.markup import figure_of
from qkvflow.report.charts.scales import axis
from qkvflow.report.page.markup import Raw, table, tag
from qkvflow.report.page.shell import document
from qkvflow.statistics.scaling_law import BOUNDS, Fit

PAGE = "scaling.html"
_LOSS = "test loss, nats per token"
_SYMBOLS = ("phi", "alpha", "beta", "E", "A", "B")
Points = Sequence[Mapping[str, Any]]


def build_scaling(directory: str | Path) -> Path:
    """Write `scaling.html` and `figures/` beside `scaling.json`."""
    directory = Path(directory)
    content = read_sealed(directory / "scaling.json")
    drawn = figures(content)
    page = document(
        f"{directory.name} – qkvflow scaling-law",
        tag(
            "header",
            tag("p", "qkvflow scaling-law", class_="kicker"),
            tag("h1", "L = E + A (N_once + r^phi N_shared)^-alpha + B D^-beta"),
            [tag("p", line, class_="facts") for line in sentences(content)],
        ),
        tag(
            "main",
            _fits(content),
            [tag("section", figure_of(each)) for each in drawn],
            _needs(content),
        ),
        data=page_data(drawn),
    )
    path = directory / PAGE
    path.write_text(page, encoding="utf-8", newline="\n")
    save({each.name: each for each in drawn}, directory / "figures")
    return path


def sentences(content: Mapping[str, Any]) -> list[str]:
    """What a repeat is worth, and what the runs leave open."""
    said = []
    for label, law in content["fits"].items():
        if "phi" in law["intervals"] and law["values"]["phi"]:
            low, high = law["intervals"]["phi"]
            worth = f"{law['values']['phi']:.2f} (95 % interval {low:.2f} to {high:.2f})"
            said.append(f"{label}: a repeat of shared weights is worth phi = {worth}")
        said += [f"{label}: {warning}" for warning in law["warnings"]]
    return said


def laws(content: Mapping[str, Any]) -> dict[str, Fit]:
    return {label: Fit.of(law) for label, law in content["fits"].items()}


def figures(content: Mapping[str, Any]) -> list[Figure]:
    points, fits = content["points"], laws(content)
    most = max(point["tokens"] for point in points)
    last = [point for point in points if point["tokens"] == most]
    widest = [
        point
        for point in points
        if point["width"] == max(p["width"] for p in points if p["label"] == point["label"])
    ]

    def size(point: Mapping[str, Any]) -> float:
        return float(point["once"] + point["shared"])

    return [
        _curves("parameters", "block parameters", last, fits, size),
        _curves("flops", "training FLOPs", last, fits, lambda point: float(point["flops"])),
        _curves("tokens", "training tokens", widest, fits, lambda point: float(point["tokens"])),
        _residuals(points, fits),
    ]


def _curves(
    name: str,
    label: str,
    points: Points,
    fits: Mapping[str, Fit],
    place: Callable[[Mapping[str, Any]], float],
) -> Figure:
    """Means over seeds, and the fitted loss through the same cells: a panel for each model."""
    seen = [point["loss"] for point in points]
    x, y = axis(label, map(place, points), log=True), axis(_LOSS, seen, pad=0.08, digits=4)
    panels = []
    for model in fits:
        own = [point for point in points if point["label"] == model]
        series = []
        for index, repeats in enumerate(sorted({point["repeats"] for point in own})):
            cells: dict[float, list[Mapping[str, Any]]] = {}
            for point in own:
                if point["repeats"] == repeats:
                    cells.setdefault(place(point), []).append(point)
            places = sorted(cells)
            means = [float(np.mean([p["loss"] for p in cells[at]])) for at in places]
            law = [_predicted(fits[model], cells[at][0]) for at in places]
            steps = f"{repeats} step{'s' * (repeats > 1)}"
            series.append(Series(steps, index, values(places), values(means), look="points"))
            if len(places) > 1:
                curve = values(law)
                series.append(Series(f"{steps}, fitted", index, values(places), curve, look="thin"))
        panels.append(Plot(model, x, y, tuple(series), legend=True))
    caption = "Points are means over seeds, thin lines the fitted law at the same cells."
    title = f"Loss against {label}"
    return Figure(name, title, caption, tuple(panels))


def _predicted(law: Fit, point: Mapping[str, Any]) -> float:
    return float(law.loss(point["once"], point["shared"], point["repeats"], point["tokens"]))


def _residuals(points: Points, fits: Mapping[str, Fit]) -> Figure:
    series = []
    for index, (model, law) in enumerate(fits.items()):
        own = [point for point in points if point["label"] == model]
        predicted = values([_predicted(law, point) for point in own])
        left = values([-100 * each for each in law.residuals])
        series.append(Series(model, index, predicted, left, look="points"))
    everything = [value for each in series for value in each.y]
    plot = Plot(
        "",
        axis("fitted loss, nats per token", [v for each in series for v in each.x]),
        axis("measured over fitted, %", everything, pad=0.08),
        tuple(series),
        legend=True,
    )
    caption = "A law that holds leaves no pattern over: runs lie about 0 at every loss."
    return Figure("residuals", "Residuals", caption, (plot,), columns=1)


def laws_table(content: Mapping[str, Any]) -> tuple[list[str], list[list[str]], str]:
    """Heads, a row for the law of each model, and what is to be known of them."""
    rows = []
    for label, law in content["fits"].items():
        cells = []
        for name in _SYMBOLS:
            ends = law["intervals"].get(name)
            if ends is None or not law["values"][name]:
                cells.append("–")
                continue
            low, high = map(numbers.three, ends)
            cells.append(f"{numbers.three(law['values'][name])} ({low} to {high})")
        count = sum(point["label"] == label for point in content["points"])
        misfit = 100 * float(np.sqrt(np.mean(np.square(law["residuals"]))))
        rows.append([label, *cells, f"{misfit:.1f} %", str(count)])
    ranges = [f"{name} {low:g} to {high:g}" for name, (low, high) in BOUNDS.items()]
    note = (
        "95 % intervals by bootstrap over cells and seeds; – where the runs show nothing of it. "
        "Misfit: root mean square of log(measured / fitted). Exponents are sought in "
        f"{', '.join(ranges)}: an end of these is no estimate."
    )
    return ["Model", *_SYMBOLS, "Misfit", "Runs"], rows, note


def _fits(content: Mapping[str, Any]) -> Raw:
    heads, rows, note = laws_table(content)
    parts = tag("h2", "The laws"), table(heads, rows)
    return tag("section", *parts, tag("p", note, class_="note"), id="laws")


def needs_table(content: Mapping[str, Any]) -> tuple[list[str], list[list[str]], str]:
    """Heads, a row for each size of the reference that a model is to reach, and what it means."""
    rows = []
    for each in content["needs"]:
        cells = [each["label"], str(each["repeats"]), numbers.loss(each["loss"])]
        cells.append(numbers.short(each["reference_parameters"]))
        if each["parameters"] is None:
            rows.append([*cells, "no size", "–", "–", "–"])
            continue
        ratios = [f"{each[key] / each[f'reference_{key}']:.2f}" for key in ("parameters", "flops")]
        far = f"{each['beyond']:.1f}x" if each["beyond"] > 1 else "no"
        cells += [numbers.short(each["parameters"]), numbers.short(each["flops"]), *ratios, far]
        rows.append(cells)
    reference = content["reference"]
    heads = ["Model", "Steps", f"Loss of {reference}", f"Parameters of {reference}", "Parameters"]
    heads += ["FLOPs", "Parameters, ratio", "FLOPs, ratio", "Beyond the runs"]
    note = (
        f"Block parameters and training FLOPs at which a model is fitted to have the loss of "
        f"{reference}, on the largest number of tokens. Beyond the runs: how far outside their "
        "sizes that is."
    )
    return heads, rows, note


def _needs(content: Mapping[str, Any]) -> Raw | None:
    if not content.get("needs"):
        return None
    heads, rows, note = needs_table(content)
    parts = tag("h2", f"To reach {content['reference']}"), table(heads, rows)
    return tag("section", *parts, tag("p", note, class_="note"), id="needs")
