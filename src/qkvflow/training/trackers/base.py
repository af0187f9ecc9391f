"""What a tracker is: somewhere that metrics go besides `metrics.jsonl`."""

import abc
import importlib
from typing import Any

from qkvflow.errors import UserError


class Tracker(abc.ABC):
    """Made with the run's directory and its configuration."""

    @abc.abstractmethod
    def log(self, line: dict[str, Any]) -> None:
        """One line of `metrics.jsonl`."""

    @abc.abstractmethod
    def text(self, name: str, text: str, step: int) -> None:
        """A sample of generated text."""

    @abc.abstractmethod
    def close(self) -> None:
        """Flush and let go."""


def scalars(line: dict[str, Any]) -> dict[str, int | float]:
    """The numbers of a line, by names such as `train/loss`."""
    return {
        f"{line['kind']}/{key}": value
        for key, value in line.items()
        if key not in ("kind", "step") and isinstance(value, int | float)
    }


def import_extra(name: str, extra: str) -> Any:
    """The library of an extra, or how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(
            f"--track {extra} needs {name}; install it with pip install 'qkvflow[{extra}]'"
        ) from None
