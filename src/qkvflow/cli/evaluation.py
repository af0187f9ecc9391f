"""Reading the options of the verbs that look at trained models."""

import math
from typing import Any

from qkvflow.errors import UserError


def checkpoint_step(text: str) -> int | str:
    """`best`, `last` or a step."""
    if text in ("best", "last"):
        return text
    if not text.isdecimal():
        raise UserError(f"--checkpoint must be best, last or a step, not '{text}'")
    return int(text)


def contexts_of(text: str | None, default: int) -> list[int]:
    """`2048,4096` as numbers."""
    if text is None:
        return [default]
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"--context must be lengths such as 2048,4096, not '{text}'")
    return [int(part) for part in parts]


def positions_of(by_position: Any) -> list[dict[str, Any]]:
    """Mean loss by stretches of positions that double in length: 1, 2, 3-4, 5-8, ..."""
    parts, first, length = [], 0, 1
    while first < len(by_position):
        part = by_position[first : first + length]
        parts.append({"first": first + 1, "last": first + len(part), "nats": float(part.mean())})
        first += len(part)
        length = first
    return parts


def with_error(loss: dict[str, Any]) -> str:
    """A mean and its standard error, which one window alone does not have."""
    error = loss["standard_error"]
    known = error is not None and math.isfinite(error)
    return f"{loss['nats']:.4f} ± {error:.4f}" if known else f"{loss['nats']:.4f}"
