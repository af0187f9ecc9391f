"""What a tracker is: somewhere that metrics go besides `metrics.jsonl`."""

import abc
import importlib
import json
from pathlib import Path
from typing import Any

from qkvflow.errors import UserError
from qkvflow.files import write_whole
from qkvflow.runs.config import RunConfig

KNOWN = ".tracker.json"


class Tracker(abc.ABC):
    """Made with the run's directory and its configuration."""

    @abc.abstractmethod
    def log(self, line: dict[str, Any]) -> None:
        """One line of `metrics.jsonl`."""

    @abc.abstractmethod
    def text(self, name: str, text: str, step: int) -> None:
        """A sample of generated text."""

    def finish(self, record: dict[str, Any]) -> None:
        """The record of a run that has ended; where there is a place for it."""
        return

    def page(self, name: str, path: Path) -> None:
        """A page such as the report of a comparison; where pages can be shown."""
        return

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


def name_of(directory: Path, config: RunConfig) -> str:
    """How a tracker calls a run: by its directory, or by what it is in a comparison."""
    track = config.track
    if track.group is None or track.label is None:
        return directory.name
    return f"{track.group}/{track.label}/{directory.name}"


def remembered(directory: Path, tracker: str) -> str | None:
    """What a tracker calls this run by, if it began earlier: it goes on in the same place."""
    try:
        return json.loads((directory / KNOWN).read_text()).get(tracker)
    except (OSError, ValueError, AttributeError):
        return None


def remember(directory: Path, tracker: str, name: str) -> None:
    """The other way round."""
    write_whole(directory / KNOWN, json.dumps({tracker: name}))


def summary_of(record: dict[str, Any]) -> dict[str, int | float]:
    """What a record comes to, by names such as `final/test/nats`."""
    found = {
        f"final/{split}/{key}": value
        for split in ("validation", "test")
        for key, value in (record["losses"][split] or {}).items()
    }
    found |= {"parameters": record["params"]["total"], "seconds": record["speed"]["seconds"]}
    return {key: value for key, value in found.items() if isinstance(value, int | float)}


def import_extra(name: str, extra: str) -> Any:
    """The library of an extra, or how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(
            f"--track {extra} needs {name}; install it with pip install 'qkvflow[{extra}]'"
        ) from None
