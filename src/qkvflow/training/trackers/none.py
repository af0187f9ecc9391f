"""No tracker: `metrics.jsonl` alone."""

from typing import Any

from qkvflow.training.trackers.base import Tracker
from qkvflow.zoo.registry import TRACKERS


@TRACKERS.register("none")
class NoTracker(Tracker):
    def __init__(self, directory: Any = None, config: Any = None) -> None:
        pass

    def log(self, line: dict[str, Any]) -> None:
        pass

    def text(self, name: str, text: str, step: int) -> None:
        pass

    def close(self) -> None:
        pass
