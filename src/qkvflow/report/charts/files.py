"""From a description to files. Without matplotlib there are none, and nothing else is missing."""

from collections.abc import Mapping
from pathlib import Path

from qkvflow.report.charts.description import Figure

WITHOUT = "PNG and PDF figures need matplotlib: pip install 'qkvflow[figures]'"


def can_print() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def save(figures: Mapping[str, Figure], directory: Path) -> tuple[Path, ...] | None:
    """Write every figure as `NAME.png` and `NAME.pdf`; None without matplotlib."""
    if not can_print():
        return None
    from qkvflow.report.charts.printed import write

    directory.mkdir(parents=True, exist_ok=True)
    return tuple(path for name, each in figures.items() for path in write(each, directory / name))
