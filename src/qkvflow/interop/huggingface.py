"""Models from checkpoints of `transformers` and back, with equal logits.

Weights are carried over by name, layout by layout (see `family`), as float32. Every tensor has to
find its place and every place its tensor. The tokenizer is not part of it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from qkvflow.errors import UserError, unknown
from qkvflow.fields import PerLayer, Shared
from qkvflow.interop.family import BLOCK, Family, Row, Settings, must_be, ours_from, theirs_from
from qkvflow.interop.gpt2 import GPT2
from qkvflow.interop.llama import LLAMA
from qkvflow.interop.mamba2 import MAMBA2
from qkvflow.interop.tensors import CONFIG, WEIGHTS, read_settings, read_tensors
from qkvflow.lm import LanguageModel, abstract
from qkvflow.schemes import Sequential
from qkvflow.zoo import ModelConfig

FAMILIES: dict[str, Family] = {"gpt2": GPT2, "llama": LLAMA, "mamba2": MAMBA2}
"""Families of checkpoints by their `model_type`."""

BLOCKS = {"attention+mlp": "gpt2", "attention+swiglu": "llama", "selective-ssm": "mamba2"}
"""The family that has a block."""

HEAD = "lm_head.weight"


def config_from_huggingface(path_or_config: str | Path | Settings) -> ModelConfig:
    """The configuration of the model that `from_huggingface` returns."""
    settings = _settings(path_or_config)
    return _family(settings).read(settings)


def from_huggingface(
    path_or_config: str | Path | Settings, tensors: Mapping[str, np.ndarray] | None = None
) -> LanguageModel:
    """The model of a local Hugging Face directory (`config.json` and safetensors).

    The contents of a `config.json` will do instead of a directory, with its `tensors` by name.
    """
    settings = _settings(path_or_config)
    family = _family(settings)
    config = family.read(settings)
    if tensors is None:
        if isinstance(path_or_config, Mapping):
            raise UserError("a configuration alone has no weights; pass its tensors as well")
        tensors = read_tensors(Path(path_or_config))
    vocab_size = settings.get("vocab_size")
    if not isinstance(vocab_size, int):
        raise UserError("the Hugging Face configuration says nothing of vocab_size; add it")
    model = abstract(config, vocab_size=vocab_size)
    found = {
        name.removeprefix(family.prefix): array
        for name, array in tensors.items()
        if not name.endswith(family.ignored)
    }
    if config.tied:
        found.pop(HEAD, None)
    rows = _rows(family, config, settings)
    _check_names(rows, config.num_steps, found)
    leaves, structure = jax.tree_util.tree_flatten_with_path(model)
    arrays = [_carry(rows[_name(path)], leaf, found) for path, leaf in leaves]
    return jax.tree.unflatten(structure, arrays)


def to_huggingface(model: LanguageModel, config: ModelConfig, directory: str | Path) -> None:
    """Write `config.json` and `model.safetensors`, for `transformers` to load.

    For models with weights of their own for every layer, and residual steps.
    """
    if config.block not in BLOCKS:
        raise UserError(
            f"no Hugging Face family has the block {config.block}; known: {', '.join(BLOCKS)}"
        )
    kind = BLOCKS[config.block]
    must_be(config, "Hugging Face", field="per-layer", frozen_time=None, final_norm="plain")
    must_be(config, "Hugging Face", prelude=0, coda=0, injection="none", core_init="input")
    whole = model.horizon == model.num_steps == config.num_steps
    layers = model.field.layers if isinstance(model.field, PerLayer) else None
    in_order = isinstance(model.scheme, Sequential)
    if not (isinstance(layers, Shared) and whole and in_order):
        raise UserError(
            "a Hugging Face checkpoint needs one residual step for each of its "
            f"{config.num_steps} layers, branches one after another; this model runs otherwise"
        )
    family = FAMILIES[kind]
    settings = {
        "model_type": kind,
        **family.write(config),
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.head is None,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
        "dtype": "float32",
    }
    rows = _rows(family, config, settings)
    tensors: dict[str, np.ndarray] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(model)[0]:
        tensors |= _carry_back(rows[_name(path)], np.asarray(leaf, np.float32))
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    named = {name if name == HEAD else family.prefix + name: a for name, a in tensors.items()}
    save_file(named, directory / WEIGHTS, metadata={"format": "pt"})
    (directory / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _settings(path_or_config: str | Path | Settings) -> Settings:
    if isinstance(path_or_config, Mapping):
        return path_or_config
    return read_settings(Path(path_or_config))


def _family(settings: Settings) -> Family:
    kind = settings.get("model_type", "")
    if kind not in FAMILIES:
        raise unknown("Hugging Face model type", str(kind), FAMILIES)
    if settings.get("quantization_config"):
        raise UserError("quantized checkpoints are not supported; load one in full precision")
    return FAMILIES[kind]


def _rows(family: Family, config: ModelConfig, settings: Settings) -> dict[str, Row]:
    """The family's table by the whole name of our array, with the head."""
    rows = {
        (BLOCK if row.ours.startswith("branches.") else "") + row.ours: row
        for row in family.rows(config, settings)
    }
    return rows if config.tied else {**rows, "head": Row("head", (HEAD,), "transposed")}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _check_names(rows: dict[str, Row], num_layers: int, found: Mapping[str, Any]) -> None:
    wanted = {
        each.format(layer)
        for row in rows.values()
        for each in row.theirs
        for layer in (range(num_layers) if "{}" in each else (0,))
    }
    for what, names in (("lacks", wanted - set(found)), ("has unexpected", set(found) - wanted)):
        if names:
            first, more = sorted(names)[:4], max(0, len(names) - 4)
            rest = f" and {more} more" if more else ""
            raise UserError(f"the checkpoint {what} tensors: {', '.join(first)}{rest}")


def _carry(row: Row, leaf: jax.ShapeDtypeStruct, found: Mapping[str, np.ndarray]) -> jax.Array:
    """Our array of that shape."""
    if not row.theirs:
        return jnp.zeros(leaf.shape)
    if not any("{}" in each for each in row.theirs):
        return jnp.asarray(_join(row, found, 0, leaf.shape))
    layers = range(leaf.shape[0])
    return jnp.asarray(np.stack([_join(row, found, each, leaf.shape[1:]) for each in layers]))


def _join(
    row: Row, found: Mapping[str, np.ndarray], layer: int, shape: tuple[int, ...]
) -> np.ndarray:
    parts = []
    for theirs, size in zip(row.theirs, row.sizes or shape[-1:], strict=True):
        name = theirs.format(layer)
        part = ours_from(np.asarray(found[name]), row.layout)
        if part.shape != (*shape[:-1], size):
            expected = theirs_from(np.empty((*shape[:-1], size)), row.layout).shape
            raise UserError(
                f"the tensor {name} has shape {np.shape(found[name])}; the configuration asks "
                f"for {expected}"
            )
        parts.append(part.astype(np.float32))
    return np.concatenate(parts, axis=-1)


def _carry_back(row: Row, array: np.ndarray) -> dict[str, np.ndarray]:
    """The tensors our array becomes."""
    made = {}
    parts = np.split(array, np.cumsum(row.sizes)[:-1], axis=-1) if row.sizes else [array]
    for name, part in zip(row.theirs, parts, strict=True):
        if "{}" in name:
            made |= {name.format(i): theirs_from(each, row.layout) for i, each in enumerate(part)}
        else:
            made[name] = theirs_from(part, row.layout)
    return made
