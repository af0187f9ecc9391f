"""Executors: who performs the units of a plan. One file per member."""

from collections.abc import Sequence
from pathlib import Path

from qkvflow.experiment.display import Display
from qkvflow.experiment.executors.base import AbstractExecutor, ExecutorOptions, Stopped
from qkvflow.experiment.units import Queue, Unit
from qkvflow.zoo.registry import EXECUTORS

__all__ = ["AbstractExecutor", "ExecutorOptions", "Stopped", "make_executor", "perform"]


def make_executor(name: str, options: ExecutorOptions) -> AbstractExecutor:
    """The executor of that name."""
    return EXECUTORS[name](options)


def perform(
    executor: AbstractExecutor,
    queue: Queue,
    expected: Sequence[Unit],
    *,
    what: str,
    logs: Path,
    display: Display,
    caught: list[int],
) -> None:
    """Everything that is not done yet; `expected` is what the display counts."""
    if caught:
        raise Stopped(caught[0])
    display.start(what, expected)
    try:
        executor.run(queue, logs=logs, display=display, caught=caught)
    finally:
        display.stop()
