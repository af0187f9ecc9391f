"""Options that the verbs for trained models share, and how they are read."""

import argparse
import math
from typing import Any

from qkvflow.errors import UserError


def add_depth_options(parser: argparse.ArgumentParser) -> None:
    """How depth is traversed, for `eval.at_depth`."""
    parser.add_argument("--num-steps", type=int, metavar="N", help="another number of depth steps")
    parser.add_argument("--scheme", help="another scheme: euler, heun, rk4, adaptive, ...")
    parser.add_argument(
        "--tolerance", type=float, metavar="X", help="of a solver (adaptive, fixed-point)"
    )


def add_checkpoint_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint", default="best", metavar="STEP", help="best (default), last, or a step"
    )


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
