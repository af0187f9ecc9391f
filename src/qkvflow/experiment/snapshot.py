"""The state of a running group, in one file that is replaced whole."""

import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from qkvflow.files import to_json
from qkvflow.training.rundir import writing


def save_snapshot(path: Path, arrays: dict[str, Any], host: dict[str, Any]) -> None:
    """Write trees of arrays by name, and what the host knows beside them."""
    from safetensors.numpy import save_file

    flat = {
        f"{name}{jax.tree_util.keystr(keys)}": np.ascontiguousarray(leaf)
        for name, tree in arrays.items()
        for keys, leaf in jax.tree_util.tree_flatten_with_path(jax.device_get(tree))[0]
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            save_file(flat, temporary, metadata={"host": to_json(host)})
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def read_host(path: Path) -> dict[str, Any] | None:
    """What the host knew, or None where there is no snapshot."""
    from safetensors import safe_open

    if not path.exists():
        return None
    try:
        with safe_open(path, "numpy") as file:
            return json.loads((file.metadata() or {})["host"])
    except Exception:
        # Not a snapshot of ours: the group starts again, which is always sound.
        return None


def read_arrays(path: Path, like: dict[str, Any]) -> dict[str, Any]:
    """The trees of arrays, in the structure and shapes of `like`."""
    from safetensors import safe_open

    made = {}
    with safe_open(path, "numpy") as file:
        for name, tree in like.items():
            leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
            found = []
            for keys, leaf in leaves:
                array = file.get_tensor(f"{name}{jax.tree_util.keystr(keys)}")
                if array.shape != leaf.shape:
                    raise ValueError(f"{name}{jax.tree_util.keystr(keys)} has another shape")
                found.append(array)
            made[name] = jax.tree.unflatten(structure, found)
    return made
