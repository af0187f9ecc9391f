"""Knowing before running: what a training step needs, from its compiled program."""

from qkvflow.planning.accelerators import ACCELERATORS, UTILISATION
from qkvflow.planning.process import plan

__all__ = ["ACCELERATORS", "UTILISATION", "plan"]
