"""Arrays by name in safetensors files.

Files that are cut short, altered or not ours are refused before memory is given to them.
"""

import hashlib
import struct
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from qkvflow.errors import UserError, one_line

WEIGHTS = "model.safetensors"
_MOST_HEADER = 100 << 20


def named_arrays(model: Any) -> dict[str, Any]:
    """Arrays by a readable path: `field.layers.block.branches.0.mixer.qkv.weight`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(eqx.filter(model, _is_leaf))
    return {path_name(path): leaf for path, leaf in leaves}


def weights_hash(model: Any) -> str:
    """sha256 of a model's arrays with their names and shapes."""
    digest = hashlib.sha256()
    for name, leaf in sorted(named_arrays(model).items()):
        digest.update(f"{name} {leaf.shape}\n".encode())
        digest.update(np.ascontiguousarray(leaf, np.float32).tobytes())
    return digest.hexdigest()


def _is_leaf(x: Any) -> bool:
    return eqx.is_inexact_array(x) or isinstance(x, jax.ShapeDtypeStruct)


def path_name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def write_weights(path: Path, arrays: dict[str, Any], metadata: dict[str, str]) -> None:
    """A safetensors file; a disk that fails is an `OSError`, as with any other file."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(arrays, path, metadata=metadata)
    except SafetensorError as error:
        said = str(error)
        why = "No space left on device" if "No space" in said else one_line(said, 120)
        raise OSError(why) from None


def read_weights(path: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """The arrays, after everything the file says of itself agrees with the model."""
    from safetensors import SafetensorError, safe_open

    _check_header(path)
    try:
        with safe_open(path, framework="numpy") as file:
            shapes = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            for name in sorted(shapes.keys() | wanted.keys()):
                found = shapes.get(name)
                have = None if found is None else (tuple(found.get_shape()), found.get_dtype())
                want = None if name not in wanted else (tuple(wanted[name].shape), "F32")
                if have != want:
                    raise UserError(
                        f"{path} is of another model: {name} is {have or 'absent'}, wanted "
                        f"{want or 'absent'}"
                    )
            return {name: jnp.asarray(file.get_tensor(name)) for name in wanted}
    except (SafetensorError, OSError) as error:
        text = " ".join(str(error).split())[:120]
        raise UserError(f"{path} is damaged ({text}); export it again") from None


def _check_header(path: Path) -> None:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; check the file") from None
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
    if not 2 <= length <= min(size - 8, _MOST_HEADER):
        raise UserError(f"{path} is not a safetensors file, or is cut short; export it again")
