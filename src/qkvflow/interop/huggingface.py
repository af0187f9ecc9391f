"""Models from checkpoints of `transformers` and back, with equal logits.

Weights are carried over by name, layout by layout (see `families`), as float32. Every tensor has to
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

from qkvflow.errors import UserError
from qkvflow.interop.families.base import (
    BLOCK,
    Family,
    Row,
    Settings,
    ours_from,
    theirs_from,
)
from qkvflow.interop.tensors import CONFIG, WEIGHTS, read_settings, read_tensors
from qkvflow.interop.unrolled import unrolled
from qkvflow.lm import LanguageModel, abstract
from qkvflow.zoo import ModelConfig
from qkvflow.zoo.registry import FAMILIES

_GEMMA = "norms after its branches, scaled embeddings and capped or windowed attention"
REFUSED = {
    "gemma": "scaled embeddings",
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "gemma3_text": _GEMMA,
    "mixtral": "experts",
    "qwen2_moe": "experts",
    "qwen3_moe": "experts",
}
"""Model types that are met often, and what they have that no block here has."""


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
    names = {
        name.removeprefix(family.prefix): name
        for name in tensors
        if not name.endswith(family.ignored)
    }
    if config.tied:
        names = {short: name for short, name in names.items() if short not in family.heads}
    found = _Renamed(tensors, names)
    rows = _rows(family, config, settings, names)
    _check_names(rows, config.num_steps, names)
    leaves, structure = jax.tree_util.tree_flatten_with_path(model)
    arrays = [_carry(rows[_name(path)], leaf, found) for path, leaf in leaves]
    return jax.tree.unflatten(structure, arrays)


def to_huggingface(
    model: LanguageModel, config: ModelConfig, directory: str | Path, **more: Any
) -> str:
    """Write `config.json` and `model.safetensors`, for `transformers` to load; returns the model
    type. `more` are further settings of the `config.json`, such as `eos_token_id`.

    For every field: see `unrolled`.
    """
    if config.parametrization != "standard":
        raise UserError(
            "a Hugging Face checkpoint has no scales for mup, in attention and before the logits; "
            "it needs a model of the standard parametrization"
        )
    model, config = unrolled(model, config)
    kind, settings = _choose(config)
    family: Family = FAMILIES[kind]()
    settings = {
        "model_type": kind.replace("-", "_"),
        **settings,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.head is None,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
        "dtype": "float32",
        **more,
    }
    rows = _rows(family, config, settings, family.heads[:1])
    leaves = jax.tree_util.tree_flatten_with_path(model)[0]
    arrays = {_name(path): np.asarray(leaf, np.float32) for path, leaf in leaves}
    if extra := sorted(set(arrays) - set(rows)):
        raise UserError(f"a {kind} checkpoint has no place for {', '.join(extra)}")
    tensors: dict[str, np.ndarray] = {}
    for name, row in rows.items():
        array = arrays[name] if name in arrays else _zeros(name, arrays)
        tensors |= _carry_back(row, array)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    named = {
        name if name in family.heads else family.prefix + name: a for name, a in tensors.items()
    }
    save_file(named, directory / WEIGHTS, metadata={"format": "pt"})
    (directory / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return settings["model_type"]


def _settings(path_or_config: str | Path | Settings) -> Settings:
    if isinstance(path_or_config, Mapping):
        return path_or_config
    return read_settings(Path(path_or_config))


def _family(settings: Settings) -> Family:
    kind = str(settings.get("model_type", ""))
    if kind in REFUSED:
        raise UserError(
            f"unsupported model type {kind}: it has {REFUSED[kind]}, which no block here has; "
            f"known: {', '.join(each.replace('-', '_') for each in FAMILIES)}"
        )
    make = FAMILIES[kind.replace("_", "-")]
    if settings.get("quantization_config"):
        raise UserError("quantized checkpoints are not supported; load one in full precision")
    return make()


def _choose(config: ModelConfig) -> tuple[str, dict[str, Any]]:
    """The family that can express a plain stack of layers, and its settings."""
    writers = {name: make() for name, make in FAMILIES.items() if make().write is not None}
    reasons = []
    for name, family in writers.items():
        if family.block != config.block or family.write is None:
            continue
        try:
            return name, family.write(config)
        except UserError as error:
            reasons.append(f"{name} needs {error}")
    if not reasons:
        known = sorted({each.block for each in writers.values()})
        raise UserError(
            f"no Hugging Face family has the block {config.block}; known: {', '.join(known)}"
        )
    raise UserError(f"no Hugging Face family has such layers: {'; '.join(reasons)}")


def _rows(family: Family, config: ModelConfig, settings: Settings, names: Any) -> dict[str, Row]:
    """The family's table by the whole name of our array, with the head as it is called."""
    rows = {
        (BLOCK if row.ours.startswith("branches.") else "") + row.ours: row
        for row in family.rows(config, settings)
    }
    if config.tied:
        return rows
    head = next((each for each in family.heads if each in names), family.heads[0])
    return {**rows, "head": Row("head", (head,), "transposed")}


class _Renamed(Mapping[str, np.ndarray]):
    """Tensors under shorter names."""

    def __init__(self, tensors: Mapping[str, np.ndarray], names: dict[str, str]) -> None:
        self._tensors, self._names = tensors, names

    def __getitem__(self, name: str) -> np.ndarray:
        return self._tensors[self._names[name]]

    def __iter__(self) -> Any:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


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
        tensor = np.asarray(found[name])
        part = ours_from(tensor, row)
        if part.shape != (*shape[:-1], size):
            expected = theirs_from(np.empty((*shape[:-1], size)), row).shape
            raise UserError(
                f"the tensor {name} has shape {tensor.shape}; the configuration asks for {expected}"
            )
        parts.append(part.astype(np.float32))
    return np.concatenate(parts, axis=-1)


def _carry_back(row: Row, array: np.ndarray) -> dict[str, np.ndarray]:
    """The tensors our array becomes."""
    made = {}
    parts = np.split(array, np.cumsum(row.sizes)[:-1], axis=-1) if row.sizes else [array]
    for name, part in zip(row.theirs, parts, strict=True):
        if "{}" in name:
            made |= {name.format(i): theirs_from(each, row) for i, each in enumerate(part)}
        else:
            made[name] = theirs_from(part, row)
    return made


def _zeros(name: str, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """What a bias is that a family has and our model has not."""
    beside = name.removesuffix("bias") + "weight" if name.endswith("bias") else ""
    beside = name.removesuffix("shift") + "scale" if name.endswith("shift") else beside
    weight = arrays[beside]
    return np.zeros(
        weight.shape[-1:] if beside.startswith("norm") else (len(weight), weight.shape[-1]),
        np.float32,
    )
