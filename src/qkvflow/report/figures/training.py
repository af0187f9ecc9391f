"""Training curves: mean over seeds, with a band from the lowest to the highest seed."""

from dataclasses import replace

from qkvflow.report.charts.description import Axis, Figure, Plot, Series, View, values
from qkvflow.report.charts.scales import axis
from qkvflow.report.content import Model, Report
from qkvflow.report.curves import AXES, Band
from qkvflow.report.figures.losses import baselines

UNITS = {"step": "training steps", "tokens": "training tokens", "seconds": "training seconds"}
CHOICES = {"step": "steps", "tokens": "tokens", "seconds": "seconds"}


def curves(report: Report, number: int) -> Figure | None:
    models = report.of(number)
    kinds = {
        "validation": [(m, m.validation) for m in models if m.validation is not None],
        "train": [(m, m.train) for m in models if m.train is not None],
    }
    panels = [
        panel
        for kind, bands in kinds.items()
        for along in AXES
        if (panel := _panel(report, number, kind, bands, along)) is not None
    ]
    if not panels:
        return None
    width = max((band.width for _, band in kinds["train"]), default=1)
    smooth = f", smoothed over {width} logged values" if width > 1 else ""
    return Figure(
        f"curves-{number}",
        f"Training curves{report.suffix(number)}",
        "Mean over seeds; the band runs from the lowest to the highest seed. Train loss is that of"
        f" the batches{smooth}. Drag over the figure to zoom, double-click for all.",
        tuple(panels),
        legend=True,
    )


def _panel(
    report: Report, number: int, kind: str, bands: list[tuple[Model, Band]], along: str
) -> Plot | None:
    known = [(m, b, x) for m, b in bands if (x := getattr(b, along)) is not None]
    if not known:
        return None
    series = tuple(
        Series(m.label, m.index, values(x), values(b.mean), values(b.low), values(b.high))
        for m, b, x in known
    )
    y = axis(
        f"{kind} loss, nats per token",
        [v for s in series for v in (*s.low, *s.high)],
        pad=0.04,
        digits=4,
    )
    ends = axis(UNITS[along], [0.0, *(x for s in series for x in s.x)], pad=0.0, digits=0)
    rules = baselines(report.groups[number], "validation") if kind == "validation" else []
    return Plot(
        "train, smoothed" if kind == "train" else kind,
        _parts(ends, series, printed=kind == "validation"),
        y,
        series,
        tuple(rule for rule, _ in rules),
        height=27.0,
        crosshair=True,
        ends=True,
        choice=(("", kind), ("against", CHOICES[along])),
        printed=along == "step",
    )


def _parts(x: Axis, series: tuple[Series, ...], *, printed: bool) -> Axis:
    """All, the last half and the last quarter of training.

    The half is printed too, unless the few evaluations there were all fall into it.
    """
    end = x.views[0].high
    early = any(s.x[0] is not None and s.x[0] < end / 2 for s in series)
    half = View("last half", end / 2, end, printed=printed and early)
    views = (View("all", 0.0, end), half, View("last quarter", 0.75 * end, end))
    return replace(x, views=views, control="zoom")
