"""Quality against compute: a trained model's loss at other depths, by FLOPs and by time."""

from collections.abc import Mapping, Sequence
from typing import Any

from qkvflow.records import finite
from qkvflow.report.charts.description import Axis, Figure, Plot, Series, values
from qkvflow.report.charts.labels import beside
from qkvflow.report.charts.scales import axis

COSTS = {"flops_per_token": "forward FLOPs per token", "ms_per_token": "milliseconds per token"}


def quality_against_compute(points: Sequence[Mapping[str, Any]], title: str) -> Figure:
    ends = [p["nats"] + sign * _error(p) for p in points for sign in (-1, 1)]
    y = axis("loss, nats per token", ends, pad=0.08, digits=4)
    return Figure(
        "sweep",
        f"{title}: loss at other depths (a ring: as it was trained)",
        "Each point is a setting with its standard error, named by its steps or its tolerance; the"
        " ring marks the setting of training.",
        tuple(_panel(points, cost, label, y) for cost, label in COSTS.items()),
        columns=2,
        legend=True,
    )


def _panel(points: Sequence[Mapping[str, Any]], cost: str, label: str, y: Axis) -> Plot:
    ordered = sorted(points, key=lambda p: p[cost])
    x = axis(label, [p[cost] for p in points], log=True, pad=0.08)
    placed = beside([(float(p[cost]), p["nats"], _setting(p)) for p in ordered], x, y)
    schemes = dict.fromkeys(p["scheme"] for p in points)
    series = []
    for index, scheme in enumerate(schemes):
        own = [i for i, p in enumerate(ordered) if p["scheme"] == scheme]
        errors = [_error(ordered[i]) for i in own]
        nats = [ordered[i]["nats"] for i in own]
        series.append(
            Series(
                scheme,
                index,
                values([ordered[i][cost] for i in own]),
                values(nats),
                values([n - e for n, e in zip(nats, errors, strict=True)]),
                values([n + e for n, e in zip(nats, errors, strict=True)]),
                look="dots",
                rings=tuple(place for place, i in enumerate(own) if ordered[i]["trained"]),
                labels=tuple(placed[i] for i in own),
            )
        )
    return Plot("", x, y, tuple(series), height=25.0)


def _error(point: Mapping[str, Any]) -> float:
    """One window has no standard error."""
    return finite(point["standard_error"]) or 0.0


def _setting(point: Mapping[str, Any]) -> str:
    steps = point["num_steps"]
    return f"{point['tolerance']:g}" if steps is None else str(steps)
