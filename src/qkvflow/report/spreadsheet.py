"""`results.csv`: the table with every digit, one row per model, n-gram and floor."""

import csv
import io
from typing import Any

from qkvflow.report.content import Report
from qkvflow.report.table import Row, rows


def to_csv(report: Report) -> str:
    """Empty cells are what is not known. Lists are separated by spaces."""
    lines = [_line(row, report) for row in rows(report)]
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=list(_line(None, report)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def _line(row: Row | None, report: Report) -> dict[str, Any]:
    model = row.model if row else None
    summary = model.metric(report.metric) if model else {}
    ends = (row.interval if row else None) or {}
    speed = model.speed if model else None
    budget = model.summary["budget"] if model else {}
    params = model.params if model else {}
    return {
        "kind": row and row.kind,
        "label": row and row.label,
        "model": model and model.name,
        "data": row and report.groups[row.group].title,
        "metric": report.metric,
        "nats_per_token": row and row.loss,
        "nats_low": ends.get("low"),
        "nats_high": ends.get("high"),
        "nats_sd": summary.get("sd"),
        "bits_per_byte": row and row.bits,
        **{f"params_{key}": params.get(key) for key in ("total", "blocks", "in_effect")},
        "learning_rate": model and model.rates.used,
        "training_flops_per_token": model and model.flops_per_token,
        "ms_per_step": speed and speed.median,
        "ms_per_step_q1": speed and speed.q1,
        "ms_per_step_q3": speed and speed.q3,
        "speed_measured_apart": speed and speed.measured,
        f"memory_{report.memory_kind}_bytes": model and model.memory,
        **{f"budget_{key}": budget.get(key) for key in ("steps", "tokens", "flops", "seconds")},
        "seeds": model and " ".join(map(str, model.seeds)),
        "failed_seeds": model and " ".join(str(run["seed"]) for run in model.summary["failed"]),
        "best": row and " ".join(sorted(row.best)),
        "beside_trigram": row and row.beside_trigram,
    }
