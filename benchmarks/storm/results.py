"""What came of a run or a comparison, without what is measured on the clock."""

import json
import re
from pathlib import Path
from typing import Any

STATISTICS = ("statistics_summary.json", "significance_tests.json")
"""Made again from the records by every call."""

UNREADABLE = "unreadable"
"""A checkpoint that nothing has had to read yet."""


def matters(path: Path) -> bool:
    """Files that something depends on: not logs, pictures and pages."""
    return (
        path.is_file()
        and path.stat().st_size > 0
        and path.suffix not in (".png", ".log", ".html", ".md")
        and path.name not in (".lock", *STATISTICS)
    )


def result_of(run: Path) -> dict[str, Any]:
    """All of a run that must not depend on what happened to it."""
    record = json.loads((run / "record.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [path for path in (run / "checkpoints").iterdir() if path.name.isdecimal()]
    last = max(steps, key=lambda path: int(path.name))
    return {
        "status": record["status"],
        "losses": record["losses"],
        "steps": record["budget"]["steps"],
        "digests": _digests(last / "host/metadata"),
        "metrics": [{k: v for k, v in line.items() if k != "seconds"} for line in lines],
        "samples": (run / "samples.txt").read_text() if (run / "samples.txt").exists() else None,
    }


def _digests(path: Path) -> Any:
    try:
        return json.loads(path.read_text())["digests"]
    except (ValueError, KeyError, OSError):
        return UNREADABLE


def compared_result_of(directory: Path) -> dict[str, Any]:
    """Losses, curves and weights of all runs, and what the statistics make of them."""
    found = {
        str(run.relative_to(directory)): result_of(run)
        for run in sorted((directory / "runs").glob("*/seed-*"))
    }
    baselines = _untimed(json.loads((directory / "baselines.json").read_text()))
    statistics = {name: _untimed(json.loads((directory / name).read_text())) for name in STATISTICS}
    return {**found, "baselines": baselines, **statistics}


def _untimed(tree: Any) -> Any:
    """Without what is measured on the clock."""
    if isinstance(tree, dict):
        timed = re.compile("second|speed|time|memory|bytes|date|made|experiments|sha256")
        return {key: _untimed(value) for key, value in tree.items() if not timed.search(key)}
    return [_untimed(each) for each in tree] if isinstance(tree, list) else tree


def difference(one: Any, other: Any, where: str = "") -> str | None:
    """The first place at which two trees differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            if (found := difference(one.get(key), other.get(key), f"{where}/{key}")) is not None:
                return found
        return None
    return None if one == other else f"{where} is {str(one)[:60]}, not {str(other)[:60]}"
