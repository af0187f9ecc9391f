"""Weights & Biases. Offline with WANDB_MODE=offline; `wandb sync` sends it later."""

import html
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


@TRACKERS.register("wandb")
class Wandb(Tracker):
    def __init__(self, directory: Path, config: RunConfig) -> None:
        self._library = import_extra("wandb", "wandb")
        before = remembered(directory, "wandb")
        self._run = self._library.init(
            project=config.track.project,
            id=before,
            resume=None if before is None else "allow",
            name=name_of(directory, config),
            group=config.track.group,
            dir=str(directory),
            config=config.to_dict(),
        )
        remember(directory, "wandb", self._run.id)

    def log(self, line: dict[str, Any]) -> None:
        self._run.log(scalars(line), step=line["step"])

    def text(self, name: str, text: str, step: int) -> None:
        page = self._library.Html(f"<pre>{html.escape(text)}</pre>", inject=False)
        self._run.log({name: page}, step=step)

    def finish(self, record: dict[str, Any]) -> None:
        self._run.summary.update(summary_of(record))

    def page(self, name: str, path: Path) -> None:
        self._run.log({name: self._library.Html(path.read_text("utf-8"), inject=False)})

    def close(self) -> None:
        self._run.finish()
