"""A directory of Hugging Face as settings and tensors: JSON and safetensors, nothing executed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from qkvflow.errors import UserError

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


def read_settings(directory: Path) -> dict[str, Any]:
    settings = _read_json(directory / CONFIG)
    if not isinstance(settings, dict):
        raise UserError(f"{directory / CONFIG} is not a Hugging Face configuration")
    return settings


def read_tensors(directory: Path) -> dict[str, np.ndarray]:
    """All tensors of the directory's single file, or of the files its index names."""
    if (directory / WEIGHTS).exists():
        return _read_file(directory / WEIGHTS)
    if not (directory / INDEX).exists():
        raise UserError(
            f"{directory} holds neither {WEIGHTS} nor {INDEX}; save the checkpoint as safetensors"
        )
    index = _read_json(directory / INDEX)
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict):
        raise UserError(f"{directory / INDEX} has no weight_map")
    tensors: dict[str, np.ndarray] = {}
    for name in sorted(set(places.values())):
        if Path(name).name != name:
            raise UserError(f"{directory / INDEX} names a file outside its directory: {name}")
        tensors |= _read_file(directory / name)
    return tensors


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no {path}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {str(error).splitlines()[0]}") from None


def _read_file(path: Path) -> dict[str, np.ndarray]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise UserError(f"there is no {path}") from None
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read {path}: {str(error).splitlines()[0]}") from None
