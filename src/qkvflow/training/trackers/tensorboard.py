"""TensorBoard: event files in the run directory."""

from pathlib import Path
from typing import Any

from qkvflow.runs.config import RunConfig
from qkvflow.training.trackers.base import Tracker, import_extra, scalars
from qkvflow.zoo.registry import TRACKERS


@TRACKERS.register("tensorboard")
class TensorBoard(Tracker):
    def __init__(self, directory: Path, config: RunConfig) -> None:
        library = import_extra("tensorboardX", "tensorboard")
        self._writer = library.SummaryWriter(str(directory / "tensorboard"))

    def log(self, line: dict[str, Any]) -> None:
        for name, value in scalars(line).items():
            self._writer.add_scalar(name, value, line["step"])

    def text(self, name: str, text: str, step: int) -> None:
        self._writer.add_text(name, text, step)

    def close(self) -> None:
        self._writer.close()
