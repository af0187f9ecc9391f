"""Training: one configuration to one run directory, stopped and resumed at will."""

from qkvflow.training.config import RunConfig, make_config
from qkvflow.training.config_files import load_config, parse_overrides, read_yaml, write_yaml
from qkvflow.training.evaluate import Evaluation, Evaluator, evaluate
from qkvflow.training.loop import Diverged, Interrupted
from qkvflow.training.run import Trained, load_run, resume, train
from qkvflow.training.step import Metrics, State, init_state, make_chunk, model_key, split_model

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
    "make_chunk",
    "make_config",
    "model_key",
    "parse_overrides",
    "read_yaml",
    "resume",
    "split_model",
    "train",
    "write_yaml",
]
