"""trackio, which keeps metrics in a local database."""

from pathlib import Path
from typing import Any

from qkvflow.runs.config import RunConfig
from qkvflow.training.trackers.base import (
    Tracker,
    import_extra,
    name_of,
    remember,
    remembered,
    scalars,
    summary_of,
)
from qkvflow.zoo.registry import TRACKERS


@TRACKERS.register("trackio")
class Trackio(Tracker):
    def __init__(self, directory: Path, config: RunConfig) -> None:
        self._library = import_extra("trackio", "trackio")
        before = remembered(directory, "trackio")
        run = self._library.init(
            project=config.track.project,
            name=before or name_of(directory, config),
            group=config.track.group,
            config=config.to_dict(),
            resume="never" if before is None else "allow",
        )
        remember(directory, "trackio", run.name)

    def log(self, line: dict[str, Any]) -> None:
        self._library.log(scalars(line), step=line["step"])

    def text(self, name: str, text: str, step: int) -> None:
        self._library.log({name: self._library.Markdown(f"```\n{text}\n```")}, step=step)

    def finish(self, record: dict[str, Any]) -> None:
        self._library.log(summary_of(record), step=record["budget"]["steps"])

    def close(self) -> None:
        self._library.finish()
