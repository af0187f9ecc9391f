"""Pretrained models of Hugging Face as directories that every verb takes."""

import dataclasses
from pathlib import Path
from typing import Any

from qkvflow.data import Tokenizer, load_tokenizer
from qkvflow.data.tokenizers.bpe import SubwordTokenizer
from qkvflow.errors import UserError
from qkvflow.interop import config_from_huggingface, from_huggingface
from qkvflow.interop.hub import PREFIX, local_copy
from qkvflow.interop.tensors import read_json, read_settings
from qkvflow.runs.config import make_config
from qkvflow.runs.export import check_new, write_export
from qkvflow.runs.load import Trained
from qkvflow.runs.sections import PRETRAINED
from qkvflow.zoo import ModelConfig

SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")
KEPT = ("chat_template", "model_max_length", "clean_up_tokenization_spaces")
"""Of a `tokenizer_config.json`, besides its special tokens."""
_ENTRIES = {"attention+swiglu": "standard-llama", "selective-ssm": "mamba"}


def import_pretrained(
    source: str | Path,
    to: str | Path,
    *,
    revision: str | None = None,
    tokenizer: str | Path | None = None,
    context: int | None = None,
) -> Trained:
    """Write the model of a Hugging Face directory, or of `hf:owner/name`, to a new directory, whole
    or not at all, with its tokenizer.

    `tokenizer` is another directory or `tokenizer.json`; `context` is what the model is used with,
    where that is to be less than it was made for.
    """
    to = check_new(to, "--out")
    directory = local_copy(str(source), revision)
    config = config_from_huggingface(directory)
    words = read_tokenizer(directory, tokenizer)
    model = from_huggingface(directory)
    if context is not None:
        if not 1 <= context <= config.context:
            raise UserError(f"--context must be 1 to {config.context:,}, not {context}")
        config = dataclasses.replace(config, context=context)
        positions = None if model.positions is None else model.positions[:context]
        model = dataclasses.replace(model, positions=positions, context=context)
    trained = Trained(model, words, _run_config(config, str(source), directory))
    write_export(trained, to, None)
    return trained


def _run_config(config: ModelConfig, source: str, directory: Path) -> Any:
    label = source if source.startswith(PREFIX) else directory.resolve().name
    return make_config(
        {
            "model": {"name": _ENTRIES.get(config.block, "standard"), **config.to_dict()},
            "data": {"spec": PRETRAINED, "tokenizer": "tokenizer.json"},
            "track": {"label": label},
        }
    )


def read_tokenizer(directory: Path, other: str | Path | None = None) -> Tokenizer:
    """The tokenizer of a Hugging Face directory, as large as its model's table."""
    where = directory if other is None else Path(other)
    path = where if where.is_file() else where / "tokenizer.json"
    if other is not None and not path.exists():
        raise UserError(f"there is no {path}; check --tokenizer")
    if not path.exists():
        raise UserError(
            f"there is no {path}; save it with transformers: "
            "AutoTokenizer.from_pretrained(NAME).save_pretrained(DIR), or give --tokenizer"
        )
    settings, found = read_settings(directory), load_tokenizer(path)
    if not isinstance(found, SubwordTokenizer):
        if found.vocab_size != settings.get("vocab_size"):
            raise UserError(f"{path} has {found.vocab_size} ids, the model another number")
        return found
    vocab_size = settings.get("vocab_size")
    if not isinstance(vocab_size, int):
        raise UserError("the Hugging Face configuration says nothing of vocab_size; add it")
    beside, special = path.with_name("tokenizer_config.json"), {}
    if beside.exists() and isinstance(given := read_json(beside), dict):
        special = {name: given[name] for name in (*SPECIAL, *KEPT) if given.get(name) is not None}
    for name in SPECIAL:
        # Either the token itself, or an object that describes it.
        token = special.pop(name, None)
        token = token.get("content") if isinstance(token, dict) else token
        if token is None and isinstance(ids := settings.get(f"{name}_id"), int | list):
            first = ids[0] if isinstance(ids, list) and ids else ids
            token = found.backend.id_to_token(first) if isinstance(first, int) else None
        if isinstance(token, str) and found.backend.token_to_id(token) is not None:
            special[name] = token
    known = {"vocab_size": vocab_size, "special": special}
    return SubwordTokenizer(found.backend, name=PRETRAINED, pretrained=known)
