"""Weights & Biases. Offline with WANDB_MODE=offline; `wandb sync` sends it later."""

from pathlib import Path
from typing import Any

from qkvflow.runs.config import RunConfig
from qkvflow.training.trackers.base import Tracker, import_extra, scalars
from qkvflow.zoo.registry import TRACKERS


@TRACKERS.register("wandb")
class Wandb(Tracker):
    def __init__(self, directory: Path, config: RunConfig) -> None:
        self._run = import_extra("wandb", "wandb").init(
            project=config.track.project,
            name=directory.name,
            group=config.track.group,
            dir=str(directory),
            config=config.to_dict(),
        )

    def log(self, line: dict[str, Any]) -> None:
        self._run.log(scalars(line), step=line["step"])

    def text(self, name: str, text: str, step: int) -> None:
        self._run.summary[name] = text

    def close(self) -> None:
        self._run.finish()
