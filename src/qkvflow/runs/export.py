"""Exports: a directory that any tool can read.

model.safetensors   the weights, by their path in the model
config.json         the configuration of the run, and hashes of the other files and of itself
tokenizer.json      the tokenizer
README.md           the model card
"""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from qkvflow.digests import file_digest, sealed
from qkvflow.errors import UserError
from qkvflow.files import to_json, write_whole
from qkvflow.lm import count_parameters
from qkvflow.runs import rundir
from qkvflow.runs.card import model_card
from qkvflow.runs.load import CONFIG_JSON, FILES, FORMAT, Trained, load
from qkvflow.runs.weights import WEIGHTS, named_arrays

CARD = "README.md"


def export(run: str | Path, to: str | Path, *, step: int | str = "best") -> Path:
    """Write the model of a run directory to a new directory, whole or not at all."""
    run, to = Path(run), check_new(to)
    write_export(load(run, step=step), to, rundir.read_record(run))
    return to


def check_new(to: str | Path, option: str = "--to") -> Path:
    """Refuse to write where something is."""
    to = Path(to)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to} exists already; choose another {option}")
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
                "version": FORMAT,
                "vocab_size": trained.model.vocab_size,
                "parameters": count_parameters(trained.model).total,
                "step": trained.step,
                "corpus_sha256": trained.corpus_sha256,
                "config": trained.config.to_dict(),
            }
            trained.tokenizer.save(temporary)
            content[FILES] = {
                name: file_digest(temporary / name) for name in (WEIGHTS, rundir.TOKENIZER)
            }
            write_whole(temporary / CONFIG_JSON, to_json(sealed(content), 1) + "\n")
            write_whole(temporary / CARD, model_card(trained, record))
            if to.exists():
                to.rmdir()
            temporary.rename(to)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
