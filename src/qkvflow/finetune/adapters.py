"""Adapters on their own: saved alone with the hash of their base, put back, and merged into it."""

import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from qkvflow.errors import UserError
from qkvflow.fields import AbstractField, Basis, Hypernet, Lora, LowRank, PerLayer, Shared
from qkvflow.fields.basis import constant_coefficients
from qkvflow.fields.modulated import Modulated
from qkvflow.fields.wrappers.lora import name_of
from qkvflow.finetune.adaptation import Adaptation, adapted_model, model_changes
from qkvflow.lm import LanguageModel
from qkvflow.lm.assembly import init_block
from qkvflow.runs.config import make_config
from qkvflow.runs.load import Trained
from qkvflow.runs.weights import named_arrays, read_weights, weights_hash, write_weights
from qkvflow.schemes import AbstractStepScheme, grid

FILE = "adapter.safetensors"
_FORMAT = "qkvflow-adapter"


def save_adapter(model: LanguageModel, adaptation: Adaptation, base_hash: str, path: Path) -> None:
    """The adapters alone, with what is needed to put them back on their base, and only on it."""
    field = model.field
    if not isinstance(field, Lora):
        raise UserError("this model has no adapters to save; fine-tune with --method lora")
    arrays = {name: np.asarray(leaf) for name, leaf in named_arrays(field.adapters).items()}
    given = {
        key: str(value)
        for key, value in dataclasses.asdict(adaptation).items()
        if value is not None
    }
    write_weights(path, arrays, {"format": _FORMAT, "base_sha256": base_hash, **given})


def load_adapter(base: Trained, path: str | Path) -> Trained:
    """The pretrained model with the adapters of a file; refused on any other base."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no file {path}; give an {FILE}")
    try:
        with safe_open(path, framework="numpy") as file:
            found = dict(file.metadata() or {})
    except (SafetensorError, OSError):
        raise UserError(f"{path} is not a safetensors file; give an {FILE}") from None
    if found.pop("format", None) != _FORMAT:
        raise UserError(f"{path} holds no adapters; give the {FILE} of a 'qkvflow finetune'")
    wanted = found.pop("base_sha256", "")
    if wanted != (own := weights_hash(base.model)):
        raise UserError(
            f"{path} was made for other weights (sha256 {wanted[:12]}, these are {own[:12]}); "
            "give the run it was fine-tuned from"
        )
    given: dict[str, Any] = dict(found)
    given |= {key: int(found[key]) for key in ("num_steps", "rank") if key in found}
    adaptation = Adaptation(**given)
    config = make_config(base.config.to_dict(), {"model": model_changes(base, adaptation)})
    model = adapted_model(base, config.model.config, adaptation, key=jax.random.key(0))
    assert isinstance(model.field, Lora)
    adapters = model.field.adapters
    arrays = read_weights(path, named_arrays(adapters))
    leaves, structure = jax.tree_util.tree_flatten_with_path(adapters)
    filled = jax.tree.unflatten(structure, [arrays[name_of(each)] for each, _ in leaves])
    field = Lora(model.field.field, filled)
    return dataclasses.replace(base, model=dataclasses.replace(model, field=field), config=config)


def merge(trained: Trained) -> Trained:
    """The same outputs without adapters.

    Adapters that are shared over depth become part of the field where it has a part that is shared
    too. Otherwise, on the trained grid, the weights in effect become a per-layer model's.
    """
    model = trained.model
    if not isinstance(model.field, Lora):
        raise UserError("this model has no adapters to merge; leave --merge out")
    field, changes = _absorbed(model.field), {"lora": "none"}
    if field is None:
        scheme = model.scheme
        if not isinstance(scheme, AbstractStepScheme) or scheme.stages != (1.0,):
            raise UserError(
                "these adapters cannot be merged exactly: the scheme asks for weights between grid "
                "points; leave --merge out, or fine-tune with --scheme euler"
            )
        blocks = model.field.stack(grid(model.num_steps))
        plain = eqx.filter_eval_shape(init_block, trained.config.model.config, jax.random.key(0))
        if jax.tree.structure(plain) != jax.tree.structure(blocks):
            raise UserError(
                f"these adapters cannot be merged: a step of the field "
                f"{trained.config.model.config.field} is not a layer; leave --merge out"
            )
        field = PerLayer(Shared(blocks), model.num_steps)
        changes |= {
            "field": "per-layer",
            "num_layers": None,
            "frozen_time": None,
            "horizon": model.horizon,
            "residual_scale": None,
        }
    config = make_config(
        trained.config.to_dict(), {"model": changes}, {"train": {"trainable": "all"}}
    )
    return dataclasses.replace(
        trained, model=dataclasses.replace(model, field=field), config=config
    )


_PLACES: dict[type[AbstractField], tuple[str, str]] = {
    Shared: ("block", ""),
    Modulated: ("block", ""),
    PerLayer: ("layers.block", ""),
    Hypernet: ("generators", "offsets"),
    LowRank: ("groups", "base"),
    Basis: ("coefficients", ""),
}
"""Where a field keeps what a matrix has at all depths: the prefix of its name, and what stands
between its group and it."""


def _absorbed(lora: Lora) -> AbstractField | None:
    """The field with the adapters in its own arrays, or None if it has no place for them."""
    field = lora.field
    if type(field) not in _PLACES or any(each.by_depth for each in lora.adapters.values()):
        return None
    prefix, inner = _PLACES[type(field)]
    terms: dict[str, Any] = {}
    for name, adapter in lora.adapters.items():
        group, _, own = name.rpartition(".")
        # A hypernetwork may share a group, which then stands without its wrapper.
        for between in {inner, ""}:
            parts = (prefix, group, between, own)
            terms[".".join(part for part in parts if part)] = adapter.down @ adapter.up
    taken = 0

    def add(path: Any, leaf: Any) -> Any:
        nonlocal taken
        if (term := terms.get(name_of(path))) is None:
            return leaf
        taken += 1
        if isinstance(field, Basis):
            constant = constant_coefficients(field.kind, field.size)
            return leaf + jnp.asarray(constant, leaf.dtype)[:, None, None] * term[None]
        return leaf + (term if leaf.ndim == 2 else term[None])

    arrays, rest = eqx.partition(field, eqx.is_array)
    made = jax.tree_util.tree_map_with_path(add, arrays)
    return eqx.combine(made, rest) if taken == len(lora.adapters) else None
