"""Axes from the values on them: range, ticks and how numbers are written."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from qkvflow.report import numbers
from qkvflow.report.charts.description import Axis, Ticks, View

# The first is for parts of an axis that a reader has chosen.
_FACTORS = (
    tuple(i / 10 for i in range(10, 100)),
    (1, 1.5, 2, 3, 4, 5, 6, 8),
    (1, 2, 3, 5),
    (1, 2, 5),
    (1, 3),
    (1,),
)

_LEAST_LOG = math.log(1.04)
"""The least range of a logarithmic axis, without its room; as in marks.js."""


def axis(
    label: str,
    seen: Iterable[float | int | None],
    *,
    log: bool = False,
    zero: bool = False,
    pad: float = 0.05,
    digits: int | None = None,
    whole: bool = False,
    marks: Sequence[float | int] = (),
) -> Axis:
    """An axis that shows these values; `whole` counts, and `marks` are the only ticks."""
    low, high = fit(seen, log=log, zero=zero, pad=pad)
    linear = _linear(low, high)
    if whole:
        linear = replace(linear, steps=tuple(s for s in linear.steps if s[0] >= 1) or ((1.0, 0),))
    return Axis(
        label=f"{label} (log)" if log and label else label,
        views=(View("all", low, high),),
        ticks=_named(marks) if marks else _log(low, high) if log else linear,
        log=log,
        zero=zero,
        pad=pad,
        digits=digits,
    )


def fit(
    seen: Iterable[float | int | None], *, log: bool = False, zero: bool = False, pad: float = 0.05
) -> tuple[float, float]:
    """The range of values with room at both ends."""
    known = [float(v) for v in seen if v is not None and math.isfinite(v) and (v > 0 or not log)]
    if not known:
        return (1.0, 10.0) if log else (0.0, 1.0)
    ends = [math.log(v) for v in (min(known), max(known))] if log else [min(known), max(known)]
    if zero:
        return 0.0, (ends[1] or 1.0) * (1 + pad)
    if log:
        # A difference of a thousandth is not the whole of an axis, nor in the digits of its ticks.
        missing = max(0.0, _LEAST_LOG - (ends[1] - ends[0])) / 2
        ends = [ends[0] - missing, ends[1] + missing]
    room = pad * ((ends[1] - ends[0]) or 0.02 * abs(ends[1]) or 1.0)
    low, high = ends[0] - room, ends[1] + room
    # Narrower than the digits of its own numbers an axis would have no ticks.
    if high - low < 1e-9 * max(abs(low), abs(high)):
        low, high = low - 0.5, high + 0.5
    return (math.exp(low), math.exp(high)) if log else (low, high)


def share(axis: Axis, value: float) -> float:
    """Where a value stands on the first view: 0 at its low end, 1 at its high end."""
    low, high = axis.views[0].low, axis.views[0].high
    if axis.log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return (value - low) / (high - low)


def ticks(axis: Axis, low: float, high: float, most: int) -> list[tuple[float, str]]:
    """The densest ticks of which there are no more than `most`."""
    for level in axis.ticks.marks:
        found = [each for each in level if _within(each[0], low, high)]
        if len(found) <= most or level is axis.ticks.marks[-1]:
            return found
    fitting = [each for each in axis.ticks.steps if (high - low) / each[0] <= most]
    step, digits = (fitting or axis.ticks.steps[:1])[-1]
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(i * step, _text(axis.ticks, i * step, digits)) for i in range(first, last + 1)]


def tick(value: float) -> str:
    """50.0M as 50M."""
    if 0 < abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-").replace("-", "−")
    text = numbers.short(value)
    digits = text.rstrip("kMGTPE")
    unit = text[len(digits) :]
    return (digits.rstrip("0").rstrip(".") if "." in digits else digits) + unit


def width_of(text: str) -> float:
    """About how wide bold text is, in em."""
    narrow, wide = set(" .,:;'|!ijltfr-()[]"), set("mwMW@%")
    each = (0.36 if c in narrow else 0.92 if c in wide else 0.62 for c in text)
    return sum(each)


def _text(ticks: Ticks, value: float, digits: int) -> str:
    if value == 0:
        return "0"
    return f"{value / ticks.divide:.{digits}f}{ticks.suffix}".replace("-", "−")


def _within(value: float, low: float, high: float) -> bool:
    """Ends count, whatever a logarithm and back has done to their last digit."""
    return low <= value * (1 + 1e-9) and value <= high * (1 + 1e-9)


def _linear(low: float, high: float) -> Ticks:
    largest = max(abs(low), abs(high))
    divide, suffix = 1.0, ""
    if largest < 1e-2:
        power = math.floor(math.log10(largest))
        divide, suffix = float(f"1e{power}"), f"e{power}"
    elif largest >= 1e4:
        power = min(18, 3 * int(math.log10(largest) // 3))
        divide, suffix = float(f"1e{power}"), " kMGTPE"[power // 3]
    top = math.floor(math.log10((high - low) / divide))
    steps = [
        (float(f"{m}e{e}") * divide, max(0, -e)) for e in range(top, top - 4, -1) for m in (5, 2, 1)
    ]
    return Ticks(steps=tuple(steps), divide=divide, suffix=suffix)


def _log(low: float, high: float) -> Ticks:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    spread = [[float(f"{factor}e{e}") for e in decades for factor in each] for each in _FACTORS]
    # Over many decades even the powers of ten are too many.
    spread.append([float(f"1e{e}") for e in decades if e % max(1, -(-len(decades) // 4)) == 0])
    if high < 4 * low:
        # Too narrow for factors: round distances.
        steps = [s for s, _ in _linear(low, high).steps[:7]]
        spread += [
            [i * step for i in range(int(low / step), int(high / step) + 1)] for step in steps
        ]
    inside = [[(v, tick(v)) for v in each if _within(v, low, high)] for each in spread]
    differ = [each for each in inside if len({text for _, text in each}) == len(each)]
    usable = [each for each in differ if len(each) > 1] or [max(differ, key=len)]
    return Ticks(marks=tuple(tuple(each) for each in sorted(usable, key=len, reverse=True)))


def _named(marks: Sequence[float | int]) -> Ticks:
    return Ticks(marks=(tuple((float(v), tick(v)) for v in np.unique(marks)),))
