"""Exports: a directory that any tool can read, and `load`, which reads runs and exports alike.

    model.safetensors   the weights, by their path in the model
    config.json         the configuration of the run
    tokenizer.json      the tokenizer
    README.md           the model card

Nothing that is read here can execute anything: JSON, YAML read safely, and safetensors. Files that
are cut short, altered or not ours are refused before memory is given to them.
"""

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from qkvflow.data import load_tokenizer
from qkvflow.errors import UserError
from qkvflow.files import to_json, write_whole
from qkvflow.lm import count_parameters
from qkvflow.parallel import Layout
from qkvflow.training import rundir
from qkvflow.training.card import model_card
from qkvflow.training.config import RunConfig, make_config
from qkvflow.training.run import Trained, abstract_model, load_run, read_record

WEIGHTS, CONFIG_JSON, CARD = "model.safetensors", "config.json", "README.md"
MODEL = "model"
"""The export inside the directory of a run that keeps no checkpoints: one of a comparison."""
_FORMAT = 1
_MOST_HEADER = 100 << 20
_MOST_CONFIG = 10 << 20


def load(path: str | Path, *, step: int | str = "best", layout: Layout | None = None) -> Trained:
    """The model of a run directory or of an export: `.model`, `.tokenizer`, `.config`.

    It is on one device, or divided as `layout` says.
    """
    path = Path(path)
    if path.name == WEIGHTS and path.is_file():
        path = path.parent
    if (path / MODEL / WEIGHTS).exists():
        path = path / MODEL
    if (path / rundir.CONFIG).exists():
        return load_run(path, step=step, layout=layout)
    if (path / WEIGHTS).exists():
        return _load_export(path, layout)
    if not path.exists():
        raise UserError(f"{path} does not exist; give a run directory or an export")
    raise UserError(f"{path} is neither a run directory nor an export; check the path")


def export(run: str | Path, to: str | Path, *, step: int | str = "best") -> Path:
    """Write the model of a run directory to a new directory, whole or not at all."""
    run, to = Path(run), check_new(to)
    write_export(load_run(run, step=step), to, read_record(run))
    return to


def check_new(to: str | Path) -> Path:
    """Refuse to write where something is."""
    to = Path(to)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to} exists already; choose another --to")
    return to


def write_export(trained: Trained, to: Path, record: dict[str, Any] | None) -> None:
    """Write a model to a directory that is new or empty, with a card from its record."""
    from safetensors.numpy import save_file

    temporary = to.with_name(f".{to.name}.{os.getpid()}.tmp")
    with rundir.writing(to, resumable=False):
        try:
            temporary.mkdir(parents=True)
            arrays = {name: np.asarray(leaf) for name, leaf in named_arrays(trained.model).items()}
            save_file(arrays, temporary / WEIGHTS, metadata={"format": "qkvflow"})
            content = {
                "format": "qkvflow",
                "version": _FORMAT,
                "vocab_size": trained.model.vocab_size,
                "parameters": count_parameters(trained.model).total,
                "step": trained.step,
                "config": trained.config.to_dict(),
            }
            write_whole(temporary / CONFIG_JSON, to_json(content, 1) + "\n")
            trained.tokenizer.save(temporary)
            write_whole(temporary / CARD, model_card(trained, record))
            if to.exists():
                to.rmdir()
            temporary.rename(to)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def named_arrays(model: Any) -> dict[str, Any]:
    """Arrays by a readable path: `field.layers.block.branches.0.mixer.qkv.weight`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(eqx.filter(model, _is_leaf))
    return {_dotted(path): leaf for path, leaf in leaves}


def _is_leaf(x: Any) -> bool:
    return eqx.is_inexact_array(x) or isinstance(x, jax.ShapeDtypeStruct)


def _dotted(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _load_export(path: Path, layout: Layout | None) -> Trained:
    content = _read_json(path / CONFIG_JSON)
    if content.get("format") != "qkvflow" or not isinstance(content.get("config"), dict):
        raise UserError(f"{path / CONFIG_JSON} is not a qkvflow export; give one made by export")
    if content.get("version") != _FORMAT:
        raise UserError(
            f"{path} is an export of format {content.get('version')!r}, this version reads "
            f"{_FORMAT}; export it again"
        )
    config: RunConfig = make_config(content["config"])
    tokenizer = load_tokenizer(path / rundir.TOKENIZER)
    params, static = abstract_model(config, tokenizer.vocab_size)
    arrays = read_weights(path / WEIGHTS, named_arrays(params))
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    filled = jax.tree.unflatten(structure, [arrays[_dotted(each)] for each, _ in leaves])
    if layout is not None:
        filled = layout.place(filled)
    return Trained(eqx.combine(filled, static), tokenizer, config, content.get("step"))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MOST_CONFIG:
            raise UserError(f"{path} is too large to be a configuration; export it again")
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} cannot be read as JSON; export it again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a qkvflow export; give one made by export")
    return content


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
