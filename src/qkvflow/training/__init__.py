"""Training: one configuration to one run directory, stopped and resumed at will."""

from qkvflow.evaluation.losses import Evaluation, Evaluator, evaluate
from qkvflow.runs.config import RunConfig, make_config
from qkvflow.runs.config_files import load_config, parse_overrides, read_yaml, write_yaml
from qkvflow.runs.load import Trained, load_run
from qkvflow.training.loop import Diverged, Interrupted
from qkvflow.training.run import resume, train
from qkvflow.training.step import (
    Metrics,
    State,
    init_state,
    make_multi_step,
    model_key,
    split_model,
)

__all__ = [
    "Diverged",
    "Evaluation",
    "Evaluator",
    "Interrupted",
    "Metrics",
    "RunConfig",
    "State",
    "Trained",
    "evaluate",
    "init_state",
    "load_config",
    "load_run",
    "make_config",
    "make_multi_step",
    "model_key",
    "parse_overrides",
    "read_yaml",
    "resume",
    "split_model",
    "train",
    "write_yaml",
]
