"""Exports: a directory that any tool can read.

model.safetensors   the weights, by their path in the model
config.json         the configuration of the run, and hashes of the other files and of itself
tokenizer.json      the tokenizer
README.md           the model card

Or, for `transformers`, a directory of Hugging Face, which has no trace of this package.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from qkvflow.data.tokenizers._huggingface import write_huggingface
from qkvflow.digests import file_digest, sealed
from qkvflow.errors import UserError, one_line, unknown
from qkvflow.files import to_json, write_whole
from qkvflow.interop import to_huggingface
from qkvflow.interop.hub import require_hub
from qkvflow.lm import count_parameters
from qkvflow.runs import rundir
from qkvflow.runs.card import model_card
from qkvflow.runs.load import CONFIG_JSON, FILES, FORMAT, Trained, load
from qkvflow.runs.weights import WEIGHTS, named_arrays, write_weights

CARD = "README.md"
FORMATS = ("qkvflow", "hf")


def export(
    run: str | Path, to: str | Path, *, step: int | str = "best", form: str = "qkvflow"
) -> Path:
    """Write the model of a run directory to a new directory, whole or not at all; `form` is one of
    `FORMATS`."""
    run, to = Path(run), check_new(to)
    write_export(load(run, step=step), to, rundir.read_record(run), form)
    return to


def check_new(to: str | Path, option: str = "--to") -> Path:
    """Refuse to write where something is."""
    to = Path(to)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to} exists already; choose another {option}")
    return to


def write_export(
    trained: Trained, to: Path, record: dict[str, Any] | None, form: str = "qkvflow"
) -> None:
    """Write a model to a directory that is new or empty, with a card from its record."""
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    with _whole(to) as directory:
        kind = None
        if form == "hf":
            special = write_huggingface(trained.tokenizer, directory, trained.model.context)
            kind = to_huggingface(trained.model, trained.config.model.config, directory, **special)
        else:
            _write_own(trained, directory)
        write_whole(directory / CARD, model_card(trained, record, kind))


def _write_own(trained: Trained, directory: Path) -> None:
    arrays = {name: np.asarray(leaf) for name, leaf in named_arrays(trained.model).items()}
    write_weights(directory / WEIGHTS, arrays, {"format": "qkvflow"})
    content = {
        "format": "qkvflow",
        "version": FORMAT,
        "vocab_size": trained.model.vocab_size,
        "parameters": count_parameters(trained.model).total,
        "step": trained.step,
        "corpus_sha256": trained.corpus_sha256,
        "config": trained.config.to_dict(),
    }
    trained.tokenizer.save(directory)
    content[FILES] = {name: file_digest(directory / name) for name in (WEIGHTS, rundir.TOKENIZER)}
    write_whole(directory / CONFIG_JSON, to_json(sealed(content), 1) + "\n")


@contextlib.contextmanager
def _whole(to: Path) -> Iterator[Path]:
    """A directory to write into, which becomes `to` when all is written."""
    temporary = to.with_name(f".{to.name}.{os.getpid()}.tmp")
    with rundir.writing(to, resumable=False):
        try:
            temporary.mkdir(parents=True)
            yield temporary
            if to.exists():
                to.rmdir()
            temporary.rename(to)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def push(directory: Path, name: str) -> str:
    """Upload a directory to a repository `owner/name` of the Hugging Face Hub, private if it is
    new; returns its address."""
    api = require_hub().HfApi()
    try:
        where = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=directory)
    except Exception as error:  # Of many kinds: the Hub's, the network's, the disk's.
        raise UserError(
            f"{directory} is written, but cannot be uploaded to {name}: {one_line(error, 240)}; "
            f"check your rights ('hf auth login') and run 'hf upload {name} {directory}'"
        ) from None
    return str(where)
