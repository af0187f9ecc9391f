"""The page of a search from `tuning.json`: history, importances and slices."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qkvflow.digests import read_sealed
from qkvflow.report import numbers
from qkvflow.report.charts.description import (
    Axis,
    Figure,
    Plot,
    Row,
    Rows,
    Series,
    Ticks,
    View,
    page_data,
    values,
)
from qkvflow.report.charts.files import save
from qkvflow.report.charts.markup import figure_of
from qkvflow.report.charts.scales import axis
from qkvflow.report.page.markup import table, tag
from qkvflow.report.page.shell import document

PAGE = "tuning.html"
_LOSS = "validation loss, nats per token"


def build_tuning(directory: str | Path) -> Path:
    """Write `tuning.html` and `figures/` beside `tuning.json`."""
    directory = Path(directory)
    content = read_sealed(directory / "tuning.json")
    drawn = figures(content)
    page = document(
        f"{directory.name} – qkvflow tune",
        tag(
            "header",
            tag("p", "qkvflow tune", class_="kicker"),
            tag("h1", ", ".join(content["search"])),
            tag("p", summary(content), class_="facts"),
        ),
        tag("main", [tag("section", figure_of(each)) for each in drawn], _table(content)),
        data=page_data(drawn),
    )
    path = directory / PAGE
    path.write_text(page, encoding="utf-8", newline="\n")
    save({each.name: each for each in drawn}, directory / "figures")
    return path


def summary(content: Mapping[str, Any]) -> str:
    """The best trial and how the others ended, in a sentence."""
    trials = content["trials"]
    best = next(each for each in trials if each["number"] == content["best"])
    counted = [f"{len(trials)} trials"]
    for state in ("pruned", "failed"):
        if count := sum(each["state"] == state for each in trials):
            counted.append(f"{count} {state}")
    found = ", ".join(f"{key} {_show(value)}" for key, value in best["values"].items())
    return f"best: {found}: {numbers.loss(best['loss'])} nats per token ({', '.join(counted)})"


def figures(content: Mapping[str, Any]) -> list[Figure]:
    trials = content["trials"]
    made = [_history(trials), _slices(content["search"], trials)]
    if content["importances"]:
        made.insert(1, _importances(content["importances"]))
    return made


def _loss(trial: Mapping[str, Any]) -> float | None:
    """Of a pruned trial, where it was stopped."""
    return trial["loss"] if trial["loss"] is not None else (trial["curve"] or [None])[-1]


def _states(trials: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    kinds = (("finished", "complete"), ("pruned", "pruned"))
    return [(name, [t for t in trials if t["state"] == state]) for name, state in kinds]


def _history(trials: Sequence[Mapping[str, Any]]) -> Figure:
    series, best, lowest = [], [], None
    for trial in trials:
        if trial["loss"] is not None:
            lowest = trial["loss"] if lowest is None else min(lowest, trial["loss"])
        best.append(lowest)
    places = [float(trial["number"]) for trial in trials]
    series.append(Series("best so far", 0, values(places), tuple(best)))
    for index, (name, own) in enumerate(_states(trials), start=1):
        x, y = [t["number"] for t in own], [_loss(t) for t in own]
        series.append(Series(name, index, values(x), tuple(y), look="points"))
    seen = [_loss(trial) for trial in trials]
    plot = Plot(
        "",
        axis("trial", places, whole=True),
        axis(_LOSS, seen, pad=0.08, digits=4),
        tuple(series),
        legend=True,
    )
    caption = (
        "The loss of every trial in the order they were asked for; a pruned one where it stopped."
    )
    return Figure("history", "History", caption, (plot,), columns=1)


def _importances(found: Mapping[str, float]) -> Figure:
    rows = [Row(key, 0, share, note=f"{share:.0%}") for key, share in found.items()]
    panel = Rows("", axis("importance", [0.0, *found.values()], zero=True), tuple(rows), stems=True)
    caption = (
        "How much each option decides whether a trial is among the better ones (PED-ANOVA, "
        "Watanabe et al. 2023); together they are 1."
    )
    return Figure("importances", "Importances", caption, (panel,), columns=1)


def _slices(search: Mapping[str, str], trials: Sequence[Mapping[str, Any]]) -> Figure:
    seen = [_loss(trial) for trial in trials]
    y = axis(_LOSS, seen, pad=0.08, digits=4)
    panels = []
    for key, space in search.items():
        tried = [trial["values"][key] for trial in trials if key in trial["values"]]
        numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in tried)
        names = [] if numeric else sorted({_show(v) for v in tried})
        if numeric:
            log = space.startswith("log:") or (min(tried, default=0) > 0 and ":" not in space)
            x = axis(key, tried, log=log, pad=0.08)
        else:
            marks = tuple((float(i), name) for i, name in enumerate(names))
            view = View("all", -0.5, len(names) - 0.5)
            x = Axis(key, (view,), Ticks(marks=(marks,)))
        series = []
        for index, (name, own) in enumerate(_states(trials), start=1):
            at = [
                t["values"][key] if numeric else names.index(_show(t["values"][key])) for t in own
            ]
            y_values = tuple(_loss(t) for t in own)
            series.append(Series(name, index, values(at), y_values, look="points"))
        panels.append(Plot(key, x, y, tuple(series), legend=True))
    caption = "The same losses against each option that was searched."
    return Figure("slices", "Slices", caption, tuple(panels))


def _table(content: Mapping[str, Any]) -> Any:
    keys = list(content["search"])
    rows = []
    for trial in sorted(content["trials"], key=lambda t: (t["loss"] is None, t["loss"] or 0.0)):
        how = trial["error"] or trial["state"]
        if trial["same_as"] is not None:
            how = f"as trial {trial['same_as']}"
        cells = [_show(trial["values"].get(key)) for key in keys]
        rows.append([str(trial["number"]), *cells, numbers.loss(_loss(trial)), how])
    heads = ["Trial", *keys, "Loss", "How it ended"]
    return tag("section", tag("h2", "Trials"), table(heads, rows, last=len(keys) + 1), id="trials")


def _show(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
