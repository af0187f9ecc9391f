"""Executors: who performs the units of a plan. One file per member."""

from qkvflow.experiment.executors.base import AbstractExecutor, ExecutorOptions, Stopped
from qkvflow.zoo.registry import EXECUTORS

__all__ = ["AbstractExecutor", "ExecutorOptions", "Stopped", "make_executor"]


def make_executor(name: str, options: ExecutorOptions) -> AbstractExecutor:
    """The executor of that name."""
    return EXECUTORS[name](options)
