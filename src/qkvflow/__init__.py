"""qkvflow: language models whose weights are functions of a continuous depth."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from qkvflow.lm import LanguageModel, build, count_flops, count_parameters, loss
    from qkvflow.runs.load import load
    from qkvflow.zoo import ModelConfig, names, register
    from qkvflow.zoo.plugins import load_plugins

_HOMES = {
    "LanguageModel": "qkvflow.lm",
    "count_flops": "qkvflow.lm",
    "count_parameters": "qkvflow.lm",
    "load": "qkvflow.runs.load",
    "load_plugins": "qkvflow.zoo.plugins",
    "loss": "qkvflow.lm",
    "ModelConfig": "qkvflow.zoo",
    "build": "qkvflow.lm",
    "names": "qkvflow.zoo",
    "register": "qkvflow.zoo",
}


def __getattr__(name: str) -> Any:
    """Imported when first used, so that the command line answers `--help` at once."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'qkvflow' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])


__all__ = [
    "LanguageModel",
    "ModelConfig",
    "build",
    "count_flops",
    "count_parameters",
    "load",
    "load_plugins",
    "loss",
    "names",
    "register",
]
