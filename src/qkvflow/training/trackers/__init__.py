"""Trackers: one file for each, by name; those of extras import their library when they are made."""

from pathlib import Path

from qkvflow.errors import UserError, one_line
from qkvflow.runs.config import RunConfig
from qkvflow.training.trackers.base import Tracker
from qkvflow.zoo.registry import TRACKERS

__all__ = ["TRACKERS", "Tracker", "make_tracker"]


def make_tracker(directory: Path, config: RunConfig) -> Tracker:
    """The tracker that a configuration names."""
    name = config.track.name
    try:
        return TRACKERS[name](directory, config)
    except UserError:
        raise
    except Exception as error:  # Each library fails in its own way: no login, no network.
        raise UserError(
            f"--track {name} could not begin ({one_line(error, 160)}); log in or mend it, or "
            "leave --track out"
        ) from error
