"""Knowing before running: what a training step needs, from its compiled program."""

from qkvflow.planning.accelerators import ACCELERATORS, UTILISATION
from qkvflow.planning.process import estimate_run

__all__ = ["ACCELERATORS", "UTILISATION", "estimate_run"]
