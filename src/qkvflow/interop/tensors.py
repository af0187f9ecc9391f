"""A directory of Hugging Face as settings and tensors: JSON and safetensors, nothing executed."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from qkvflow.errors import UserError, one_line

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


def read_settings(directory: Path) -> dict[str, Any]:
    settings = read_json(directory / CONFIG)
    if not isinstance(settings, dict):
        raise UserError(f"{directory / CONFIG} is not a Hugging Face configuration")
    return settings


class Tensors(Mapping[str, np.ndarray]):
    """Tensors by name, in files that are mapped into memory; one is read when it is asked for."""

    def __init__(self, files: list[Path]) -> None:
        self._files: dict[str, Any] = {}
        for path in files:
            with _reading(path):
                file = safe_open(path, framework="numpy")
                self._files |= dict.fromkeys(file.keys(), (path, file))

    def __getitem__(self, name: str) -> np.ndarray:
        path, file = self._files[name]
        with _reading(path):
            return file.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def read_tensors(directory: Path) -> Tensors:
    """All tensors of the directory's single file, or of the files its index names."""
    if (directory / WEIGHTS).exists():
        return Tensors([directory / WEIGHTS])
    if not (directory / INDEX).exists():
        pickled = sorted(path.name for path in directory.glob("*.bin"))
        if pickled:
            raise UserError(
                f"{directory / pickled[0]} is a pickle, which can execute anything, and is not "
                "read; save the checkpoint as safetensors, with transformers: "
                "AutoModelForCausalLM.from_pretrained(OLD).save_pretrained(NEW)"
            )
        raise UserError(
            f"{directory} holds neither {WEIGHTS} nor {INDEX}; save the checkpoint as safetensors"
        )
    index = read_json(directory / INDEX)
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict):
        raise UserError(f"{directory / INDEX} has no weight_map")
    names = sorted({str(each) for each in places.values()})
    for name in names:
        if Path(name).name != name:
            raise UserError(f"{directory / INDEX} names a file outside its directory: {name}")
    return Tensors([directory / name for name in names])


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {one_line(error, 160)}") from None


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"there is no {path}") from None
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read {path}: {one_line(error, 160)}") from None
