"""Numbers as they are read: one way of writing each quantity, wherever it stands."""

import math
from collections.abc import Mapping
from typing import Any

ABSENT = "–"


def short(number: float | int | None) -> str:
    """4,865,000 as 4.87M."""
    if number is None:
        return ABSENT
    for scale, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        # What rounds to 1000 of a unit is 1 of the next.
        if abs(number) >= 0.9995 * scale:
            return f"{three(number / scale)}{unit}"
    return three(number)


def memory(size: float | int | None) -> str:
    """Bytes in binary units: 1,610,612,736 as 1.5 GiB."""
    if size is None:
        return ABSENT
    for scale, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= 0.9995 * scale:
            return f"{three(size / scale)} {unit}"
    return f"{size:.0f} B"


def loss(value: float | int | None) -> str:
    return ABSENT if value is None or math.isnan(value) else f"{value:.4f}"


def interval(ends: Mapping[str, Any] | None) -> str | None:
    """'1.8311 to 1.8554', or None where there is no interval."""
    if ends is None or ends["low"] is None:
        return None
    return f"{loss(ends['low'])} to {loss(ends['high'])}"


def milliseconds(value: float | int | None) -> str:
    return ABSENT if value is None else three(value)


def seconds(value: float | int | None) -> str:
    """72 as '72 s', 4000 as '1.11 h'."""
    if value is None:
        return ABSENT
    for scale, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if value >= 2 * scale:
            return f"{three(value / scale)} {unit}"
    return f"{three(value)} s"


def p_value(p: float | int | None) -> str:
    if p is None:
        return ABSENT
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def signed(value: float | int | None, digits: int = 3) -> str:
    """With its sign, and a true minus."""
    if value is None:
        return ABSENT
    return f"{value:+.{digits}f}".replace("-", "−")


def three(value: float | int) -> str:
    """Three digits, without an exponent below a million: 0.0123, 4.87, 48.7, 4870."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    if abs(rounded) >= 1e6 or abs(rounded) < 1e-4:
        return f"{value:.3g}"
    return f"{rounded:.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"
