"""trackio, which keeps metrics in a local database."""

from pathlib import Path
from typing import Any

from qkvflow.runs.config import RunConfig
from qkvflow.training.trackers.base import Tracker, import_extra, scalars
from qkvflow.zoo.registry import TRACKERS


@TRACKERS.register("trackio")
class Trackio(Tracker):
    def __init__(self, directory: Path, config: RunConfig) -> None:
        self._library = import_extra("trackio", "trackio")
        self._library.init(
            project=config.track.project, name=directory.name, config=config.to_dict()
        )

    def log(self, line: dict[str, Any]) -> None:
        self._library.log(scalars(line), step=line["step"])

    def text(self, name: str, text: str, step: int) -> None:
        pass

    def close(self) -> None:
        self._library.finish()
