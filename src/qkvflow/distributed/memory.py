"""Whether a compiled program fits into the memory of its devices, asked before it runs."""

from typing import Any

import jax

from qkvflow.errors import OutOfMemory
from qkvflow.limits import memory_limit


def program_bytes(compiled: Any) -> int | None:
    """What a compiled program holds at once, by its own analysis, or None where it has none."""
    try:
        analysis = compiled.memory_analysis()
        return int(
            analysis.argument_size_in_bytes
            + analysis.output_size_in_bytes
            + analysis.temp_size_in_bytes
            - analysis.alias_size_in_bytes
        )
    except Exception:  # Backends without the analysis raise each in their own way.
        return None


def check_fits(needed: int | None, what: str, instead: str) -> None:
    """Refuse a program that cannot fit, which the system would end without a word."""
    device = jax.local_devices()[0]
    most = (device.memory_stats() or {}).get("bytes_limit")
    if most is None and device.platform == "cpu":
        most = memory_limit()
        # The devices of one machine share its memory.
        most = most and most // len(jax.local_devices())
    if needed is not None and most is not None and needed > most:
        raise OutOfMemory(
            f"out of memory: {what} takes {needed / 1e9:.1f} GB and there are {most / 1e9:.1f} GB; "
            f"{instead}"
        )
