"""TensorBoard: event files in the run directory; a run that is resumed adds to them."""

from pathlib import Path
from typing import Any

from qkvflow.files import to_json
from qkvflow.runs.config import RunConfig
from qkvflow.runs.config_files import write_yaml
from qkvflow.training.trackers.base import Tracker, import_extra, scalars, summary_of
from qkvflow.zoo.registry import TRACKERS


@TRACKERS.register("tensorboard")
class TensorBoard(Tracker):
    def __init__(self, directory: Path, config: RunConfig) -> None:
        library = import_extra("tensorboardX", "tensorboard")
        folder = directory / "tensorboard"
        # Named by the second: one that is resumed within it must not write over the first.
        count = len(list(folder.glob("*"))) if folder.exists() else 0
        self._writer = library.SummaryWriter(str(folder), filename_suffix=f".{count}")
        self.text("config", write_yaml(config), 0)

    def log(self, line: dict[str, Any]) -> None:
        for name, value in scalars(line).items():
            self._writer.add_scalar(name, value, line["step"])

    def text(self, name: str, text: str, step: int) -> None:
        # Shown as Markdown: indented, it stays what it is.
        self._writer.add_text(name, "\n".join(f"    {line}" for line in text.split("\n")), step)

    def finish(self, record: dict[str, Any]) -> None:
        self.text("record", to_json(summary_of(record), 1), record["budget"]["steps"])

    def close(self) -> None:
        self._writer.close()
