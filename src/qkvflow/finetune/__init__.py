"""Fine-tuning: a pretrained run on other data, at another depth, by all or a few of its weights."""

from qkvflow.finetune.adaptation import METHODS, Adaptation, adapted_model
from qkvflow.finetune.adapters import load_adapter, merge, save_adapter, weights_hash
from qkvflow.finetune.run import finetune

__all__ = [
    "METHODS",
    "Adaptation",
    "adapted_model",
    "finetune",
    "load_adapter",
    "merge",
    "save_adapter",
    "weights_hash",
]
