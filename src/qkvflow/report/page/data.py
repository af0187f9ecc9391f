"""What the page's figures draw: plain lists and numbers, as JSON."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from qkvflow.report.content import Group, Model, Report
from qkvflow.report.costs import COSTS, cost, front
from qkvflow.report.curves import Band
from qkvflow.report.palette import LIGHT


def chart_data(report: Report) -> dict[str, Any]:
    return {
        "metric": report.metric,
        "colours": len(LIGHT),
        "memory": report.memory_kind,
        "models": [_model(model, report) for model in report.models],
        "groups": [
            _group(group, report.of(number), report) for number, group in enumerate(report.groups)
        ],
    }


def embedded(content: Any) -> str:
    """JSON that can stand in a script element: no `<` can end it."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _group(group: Group, models: Sequence[Model], report: Report) -> dict[str, Any]:
    return {
        "title": group.title,
        "baselines": [
            {"name": b.name, "order": b.order, "loss": b.losses} for b in group.baselines
        ],
        "fronts": {axis: front(models, axis, report.metric) for axis in COSTS},
    }


def _model(model: Model, report: Report) -> dict[str, Any]:
    summary = model.metric(report.metric)
    speed = model.speed
    return {
        "label": model.label,
        "index": model.index,
        "group": model.group,
        "mean": summary["mean"],
        "low": summary["t_interval"]["low"],
        "high": summary["t_interval"]["high"],
        "seeds": summary["values"],
        **{axis: cost(model, axis) for axis in COSTS},
        "memory": model.memory,
        "speed": None
        if speed is None
        else {
            "median": speed.median,
            "q1": speed.q1,
            "q3": speed.q3,
            "rounds": speed.rounds,
            "measured": speed.measured,
            "tokensPerSecond": speed.tokens_per_second,
            "compileSeconds": speed.compile_seconds,
        },
        "curves": {"validation": _band(model.validation), "train": _band(model.train)},
        "depth": [
            {
                "steps": e.num_steps,
                "scheme": e.scheme,
                "mean": e.mean,
                "low": e.low,
                "high": e.high,
            }
            for e in model.evaluations
        ],
        "trainedSteps": model.config.get("num_steps"),
    }


def _band(band: Band | None) -> dict[str, Any] | None:
    if band is None:
        return None
    return {
        "seeds": band.seeds,
        "width": band.width,
        **{
            name: _rounded(getattr(band, name))
            for name in ("step", "tokens", "seconds", "mean", "low", "high")
        },
    }


def _rounded(values: np.ndarray | None) -> list[float] | None:
    """Six digits: more cannot be seen, and they are most of the page's weight."""
    return None if values is None else [float(f"{value:.6g}") for value in values]
