"""Training curves over the seeds of a model, as bands."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkvflow.errors import UserError
from qkvflow.records import Curve, Record, curve, finite

# A phone is 390 points wide; more bins than this cannot be seen and only make the page heavy.
MOST_BINS = 120
AXES = ("step", "tokens", "seconds")


@dataclass(frozen=True)
class Band:
    """Mean, lowest and highest seed at each step; tokens and seconds are means over seeds."""

    step: np.ndarray
    tokens: np.ndarray | None
    seconds: np.ndarray | None
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: int
    width: int = 1
    """Logged lines that one point is the mean of (smoothing)."""


def read(runs: Sequence[Record]) -> dict[int, Curve]:
    """The curves of the runs that left one, by seed."""
    curves: dict[int, Curve] = {}
    for run in runs:
        if run.run_dir is not None:
            try:
                curves[run.seed] = curve(run.run_dir)
            except UserError:
                continue
    return curves


def band(curves: Sequence[Curve], kind: str) -> Band | None:
    """The curves of several seeds on common steps, as far as the shortest goes.

    Validation is kept point by point. Train is the mean of `width` logged lines in a row.
    """
    rows = [_columns(c.validation if kind == "validation" else c.train) for c in curves]
    rows = [row for row in rows if len(row["step"])]
    if not rows:
        return None
    width = 1
    if kind == "train":
        width = max(1, -(-max(len(row["step"]) for row in rows) // MOST_BINS))
        rows = [{name: _binned(values, width) for name, values in row.items()} for row in rows]
    end = min(row["step"][-1] for row in rows)
    steps = np.unique(np.concatenate([row["step"] for row in rows]))
    steps = steps[steps <= end]
    at = {name: [_at(steps, row, name) for row in rows] for name in ("loss", "tokens", "seconds")}
    losses = np.stack(at["loss"])
    known = {name: np.stack(at[name]) for name in ("tokens", "seconds")}
    axes = {n: v.mean(axis=0) if np.isfinite(v).all() else None for n, v in known.items()}
    return Band(
        step=steps,
        tokens=axes["tokens"],
        seconds=axes["seconds"],
        mean=losses.mean(axis=0),
        low=losses.min(axis=0),
        high=losses.max(axis=0),
        seeds=len(rows),
        width=width,
    )


def _columns(lines: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Lines with a finite loss, as arrays; an absent coordinate is NaN."""
    usable = [line for line in lines if finite(line.get("loss")) is not None]
    return {
        name: np.array([_number(line.get(name)) for line in usable])
        for name in ("step", "tokens", "seconds", "loss")
    }


def _number(value: Any) -> float:
    number = finite(value)
    return float("nan") if number is None else number


def _binned(values: np.ndarray, width: int) -> np.ndarray:
    # A short rest joins the last bin: alone it would be a noisy end of the curve.
    edges = np.arange(0, max(1, len(values) - width // 2), width)
    return np.add.reduceat(values, edges) / np.diff(np.append(edges, len(values)))


def _at(steps: np.ndarray, row: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    return np.interp(steps, row["step"], row[name])
