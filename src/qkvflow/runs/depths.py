"""Depths in a configuration: which grids a step may draw, and at which depths to evaluate."""

import dataclasses
import re

from qkvflow.errors import UserError

MOST_NUMBERS = 8
"""Of steps to draw from: each is a branch to compile."""


@dataclasses.dataclass(frozen=True)
class Jitter:
    """What is drawn for a training step."""

    offset: bool = False
    numbers: tuple[int, ...] = ()
    """Of depth steps; none: the model's own."""


def parse_jitter(text: str) -> Jitter:
    """`none`, `offset`, `4-8`, `3,6,12`, `offset+4-8`."""
    offset = False
    numbers: tuple[int, ...] = ()
    parts = [] if text == "none" else text.split("+")
    for part in parts:
        part = part.strip()
        if part == "offset":
            offset = True
        elif span := re.fullmatch(r"(\d{1,6})-(\d{1,6})", part):
            numbers = tuple(range(int(span[1]), int(span[2]) + 1))
        elif re.fullmatch(r"\d{1,6}(,\d{1,6})*", part):
            numbers = tuple(dict.fromkeys(int(each) for each in part.split(",")))
        else:
            raise _wrong(text)
        if part != "offset" and (not numbers or 0 in numbers):
            raise _wrong(text)
    if len(numbers) > MOST_NUMBERS:
        raise UserError(
            f"train.depth_jitter '{text}' draws from {len(numbers)} numbers of steps, and each is "
            f"compiled; give at most {MOST_NUMBERS}, such as {min(numbers)},{max(numbers)}"
        )
    return Jitter(offset, numbers)


def _wrong(text: str) -> UserError:
    return UserError(
        f"train.depth_jitter must be none, offset, numbers of steps such as 4-8 or 3,6,12, or "
        f"offset+4-8, not '{text}'"
    )


def parse_depths(text: str) -> tuple[str, ...]:
    """`none`, or multiples of the number of steps and `adaptive`, such as `0.5,2,adaptive`."""
    if text == "none":
        return ()
    depths = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for depth in depths:
        try:
            good = depth == "adaptive" or 0 < float(depth) < float("inf")
        except ValueError:
            good = False
        if not good:
            raise UserError(
                f"a depth is a multiple of N such as 0.5 or 2, or adaptive, not '{depth}'"
            )
    return depths
