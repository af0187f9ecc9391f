"""Each model by itself: `statistics_summary.json`."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from qkvflow.records import Record, Records, finite
from qkvflow.statistics.intervals import bca_limits, mean_interval, t_limits
from qkvflow.statistics.pairing import mean_budget

LEVEL = 0.95
SPLITS = ("validation", "test")
# The perplexity of a diverged run can be a number whose square is none.
LARGEST = 1e100
UNITS = ("nats", "bits_per_byte", "perplexity")


def summarise(records: Records, *, resamples: int = 9999, seed: int = 0) -> dict[str, Any]:
    """Mean, spread and intervals of every loss of every model; `seed` is the bootstrap's."""
    return {
        "schema": 1,
        "level": LEVEL,
        "leading_interval": "t_interval",
        "bootstrap": {"method": "BCa", "resamples": resamples, "seed": seed},
        "models": {
            label: _model(records, label, resamples=resamples, seed=seed)
            for label in records.labels
        },
        "notes": list(records.notes),
    }


def _model(records: Records, label: str, *, resamples: int, seed: int) -> dict[str, Any]:
    runs = records.of(label)
    failed = records.failures(label)
    places = [run.experiment.name for run in runs + failed if run.experiment is not None]
    return {
        "name": runs[0].section("model").get("name") if runs else None,
        "experiments": list(dict.fromkeys(places)),
        "seeds": [run.seed for run in runs],
        "failed": [{"seed": run.seed, "error": run.error} for run in failed],
        "unfinished": [open_seed for name, open_seed in records.unfinished if name == label],
        "budget": mean_budget(runs),
        "metrics": {
            split: {
                unit: _metric(runs, split, unit, resamples=resamples, seed=seed) for unit in UNITS
            }
            for split in SPLITS
        },
        "accuracy": _accuracy(runs),
    }


def _accuracy(runs: Sequence[Record]) -> dict[str, Any] | None:
    """On the answers of a probe: of the whole split, and by difficulty."""
    found = [(run.seed, run.section("accuracy")) for run in runs if run.section("accuracy")]
    if not found:
        return None
    by_level: dict[int, list[tuple[int, Mapping[str, Any]]]] = {}
    for seed, probe in found:
        for each in probe.get("levels") or ():
            by_level.setdefault(int(each["level"]), []).append((seed, each))
    levels = [
        {"level": level, "trained": bool(each[0][1].get("trained")), **_shares(each)}
        for level, each in sorted(by_level.items())
    ]
    facts = {key: found[0][1].get(key) for key in ("split", "difficulty", "floor")}
    return {**facts, "all": _shares(found), "levels": levels}


def _shares(found: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, Any]:
    pairs = [(seed, finite(each.get("tokens"))) for seed, each in found]
    known = [{"seed": seed, "value": value} for seed, value in pairs if value is not None]
    values = np.array([each["value"] for each in known])
    return {
        "n": len(known),
        "mean": float(values.mean()) if known else None,
        "t_interval": mean_interval(values, LEVEL, t_limits),
        "chance": finite(found[0][1].get("chance")),
        "values": known,
    }


def _metric(
    runs: Sequence[Record], split: str, unit: str, *, resamples: int, seed: int
) -> dict[str, Any]:
    pairs = [(run.seed, _bounded(run.loss(split, unit))) for run in runs]
    values = np.array([value for _, value in pairs if value is not None])
    n = values.size
    sd = float(values.std(ddof=1)) if n > 1 else None
    reason = None
    if n < 2:
        reason = "no finished run has this value" if n == 0 else "one seed has no spread"
    # A fresh generator for each metric: an interval does not depend on what else is summarised.
    bootstrap = partial(bca_limits, resamples=resamples, generator=np.random.default_rng(seed))
    return {
        "n": n,
        "mean": float(values.mean()) if n else None,
        "sd": sd,
        "standard_error": None if sd is None else sd / n**0.5,
        "t_interval": mean_interval(values, LEVEL, t_limits),
        "bca_interval": mean_interval(values, LEVEL, bootstrap),
        "values": [{"seed": s, "value": value} for s, value in pairs if value is not None],
        "missing": [
            {"seed": s, "reason": f"{split} {unit} is absent, not finite or above {LARGEST:g}"}
            for s, value in pairs
            if value is None
        ],
        "reason": reason,
    }


def _bounded(value: float | None) -> float | None:
    return None if value is None or value > LARGEST else value
