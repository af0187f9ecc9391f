"""Where metrics go besides `metrics.jsonl`: TensorBoard, Weights & Biases, trackio.

Each is an extra, imported where it is used.
"""

import abc
import importlib
from pathlib import Path
from typing import Any

from qkvflow.errors import UserError, unknown
from qkvflow.runs.config import TRACKERS, RunConfig


class Tracker(abc.ABC):
    @abc.abstractmethod
    def log(self, line: dict[str, Any]) -> None:
        """One line of `metrics.jsonl`."""

    @abc.abstractmethod
    def text(self, name: str, text: str, step: int) -> None:
        """A sample of generated text."""

    @abc.abstractmethod
    def close(self) -> None:
        """Flush and let go."""


class NoTracker(Tracker):
    def log(self, line: dict[str, Any]) -> None:
        pass

    def text(self, name: str, text: str, step: int) -> None:
        pass

    def close(self) -> None:
        pass


def _scalars(line: dict[str, Any]) -> dict[str, float]:
    return {
        f"{line['kind']}/{key}": value
        for key, value in line.items()
        if key not in ("kind", "step") and isinstance(value, int | float)
    }


class TensorBoard(Tracker):
    def __init__(self, directory: Path, config: RunConfig) -> None:
        self._writer = _library("tensorboardX", "tensorboard").SummaryWriter(
            str(directory / "tensorboard")
        )

    def log(self, line: dict[str, Any]) -> None:
        for name, value in _scalars(line).items():
            self._writer.add_scalar(name, value, line["step"])

    def text(self, name: str, text: str, step: int) -> None:
        self._writer.add_text(name, text, step)

    def close(self) -> None:
        self._writer.close()


class Wandb(Tracker):
    """Offline with WANDB_MODE=offline; `wandb sync` sends it later."""

    def __init__(self, directory: Path, config: RunConfig) -> None:
        self._run = _library("wandb", "wandb").init(
            project=config.track.project,
            name=directory.name,
            dir=str(directory),
            config=config.to_dict(),
        )

    def log(self, line: dict[str, Any]) -> None:
        self._run.log(_scalars(line), step=line["step"])

    def text(self, name: str, text: str, step: int) -> None:
        self._run.summary[name] = text

    def close(self) -> None:
        self._run.finish()


class Trackio(Tracker):
    def __init__(self, directory: Path, config: RunConfig) -> None:
        self._library = _library("trackio", "trackio")
        self._library.init(
            project=config.track.project, name=directory.name, config=config.to_dict()
        )

    def log(self, line: dict[str, Any]) -> None:
        self._library.log(_scalars(line), step=line["step"])

    def text(self, name: str, text: str, step: int) -> None:
        pass

    def close(self) -> None:
        self._library.finish()


def make_tracker(directory: Path, config: RunConfig) -> Tracker:
    kinds = {"tensorboard": TensorBoard, "wandb": Wandb, "trackio": Trackio}
    name = config.track.name
    if name == "none":
        return NoTracker()
    if name not in kinds:
        raise unknown("tracker", name, TRACKERS)
    return kinds[name](directory, config)


def _library(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(
            f"--track {extra} needs {name}; install it with pip install 'qkvflow[{extra}]'"
        ) from None
