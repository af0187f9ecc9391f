"""Training: one configuration to one run directory, stopped and resumed at will."""

from qkvflow.training.loop import Diverged, Interrupted
from qkvflow.training.program import Program, make_program
from qkvflow.training.run import resume, train
from qkvflow.training.step import Metrics, TrainState, model_key, split_model

__all__ = [
    "Diverged",
    "Interrupted",
    "Metrics",
    "Program",
    "TrainState",
    "make_program",
    "model_key",
    "resume",
    "split_model",
    "train",
]
