"""Trackers: one file for each, by name; those of extras import their library when they are made."""

from pathlib import Path

from qkvflow.runs.config import RunConfig
from qkvflow.training.trackers.base import Tracker
from qkvflow.zoo.registry import TRACKERS

__all__ = ["TRACKERS", "Tracker", "make_tracker"]


def make_tracker(directory: Path, config: RunConfig) -> Tracker:
    """The tracker that a configuration names."""
    return TRACKERS[config.track.name](directory, config)
