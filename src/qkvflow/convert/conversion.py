"""From a trained per-layer model to another field: weights, configuration, and what was lost."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qkvflow.blocks.base import Block, is_matrix, leaves_with_nodes
from qkvflow.convert.gating import fit_gated
from qkvflow.convert.layers import BASES, fit_basis, fit_low_rank, tied_blocks
from qkvflow.errors import UserError, unknown
from qkvflow.fields import AbstractField, Basis, Gated, LowRank, PerLayer, Shared
from qkvflow.fields.base import on_grid, take
from qkvflow.fields.cycle import cycle
from qkvflow.lm import LanguageModel, abstract, build_config
from qkvflow.lm.segments import Segment
from qkvflow.runs.config import make_config
from qkvflow.runs.load import Trained

FIELDS = ("shared", "low-rank", "basis", "gated", "cycle", "looped")
SIZES = {
    "low-rank": "rank",
    "basis": "num_basis",
    "cycle": "layers_per_loop",
    "looped": "layers_per_loop",
}
"""Fields that come in sizes, and the option that says which."""
TAKES = {
    "low-rank": ("rank",),
    "basis": ("num_basis", "basis"),
    "gated": ("gate", "time_features"),
    "cycle": ("layers_per_loop",),
    "looped": ("layers_per_loop", "prelude", "coda"),
}
"""Fields with options of their own."""


@dataclasses.dataclass(frozen=True)
class Conversion:
    """Which field, and how it is fitted."""

    field: str
    base: str = "average"
    """What stands for layers that become one: average, stepwise or lower."""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Of the model's configuration, such as rank."""

    def __post_init__(self) -> None:
        if self.field not in FIELDS:
            raise unknown("field to convert to", self.field, FIELDS)
        if self.base not in BASES:
            raise unknown("shared base", self.base, BASES)

    def of_size(self, size: int) -> "Conversion":
        """The same with another rank, number of basis functions or of layers in a loop."""
        if self.field not in SIZES:
            known = ", ".join(SIZES)
            raise UserError(f"--ranks is for {known}: {self.field} comes in one size; leave it out")
        return dataclasses.replace(self, options={**self.options, SIZES[self.field]: size})


def convert(source: Trained, conversion: Conversion) -> Trained:
    """The model with a field fitted to its layers; everything else stays as it is."""
    layers = jax.tree.map(np.asarray, _layers(source))
    changes = _changes(source, conversion)
    label = f"{source.config.model.name} as {conversion.field}"
    config = make_config(
        source.config.to_dict(), {"model": changes}, {"track": {"label": label, "group": None}}
    )
    shape = config.model.config
    vocab_size = source.model.vocab_size
    # A fresh model says how the fitted one is put together. Of its weights only a gated field's
    # features of depth stay.
    if shape.field == "gated":
        fresh = build_config(shape, vocab_size=vocab_size, key=jax.random.key(0))
    else:
        fresh = abstract(shape, vocab_size=vocab_size)
    others = ("embedding", "positions", "injection", "norm", "head", "exit_gate")
    kept = {name: getattr(source.model, name) for name in others}
    ends = shape.prelude, source.model.num_steps - shape.coda
    core = jax.tree.map(lambda leaf: leaf[slice(*ends)], layers)
    model = dataclasses.replace(
        fresh,
        field=_fitted(core, fresh.field, conversion, shape),
        prelude=_own(fresh.prelude, layers, slice(ends[0])),
        coda=_own(fresh.coda, layers, slice(ends[1], None)),
        **kept,
    )
    return dataclasses.replace(source, model=model, config=config)


def _fitted(core: Block, fresh: AbstractField, conversion: Conversion, shape: Any) -> AbstractField:
    match fresh:
        case LowRank():
            return fit_low_rank(core, fresh, shape.rank, conversion.base)
        case Basis():
            return fit_basis(core, fresh)
        case Gated():
            return fit_gated(core, fresh, conversion.base)
    count = 1 if conversion.field == "shared" else shape.layers_per_loop
    blocks = tied_blocks(core, count, conversion.base)
    return Shared(blocks[0]) if conversion.field == "shared" else cycle(blocks)


def _own(segments: tuple[Segment, ...], layers: Block, which: slice) -> tuple[Segment, ...]:
    """Segments of layers as they are."""
    stack = jax.tree.map(lambda leaf: jnp.asarray(leaf[which]), layers)
    return tuple(
        dataclasses.replace(each, field=PerLayer(Shared(stack), each.num_steps))
        for each in segments
    )


def _layers(source: Trained) -> Block:
    """The stack of a plain per-layer model, or why there is none."""
    model, shape = source.model, source.config.model.config
    plain = isinstance(model.field, PerLayer) and isinstance(model.field.layers, Shared)
    if not plain or model.prelude or model.coda:
        raise UserError(
            f"layers are fitted of a per-layer model, and this one has field {shape.field}"
            f"{'' if plain else ' (merge adapters with export --merge)' * (shape.lora != 'none')}"
            f"{' and own layers at its ends' if model.prelude or model.coda else ''}; give another"
        )
    if shape.layers != model.num_steps:
        raise UserError(
            f"this model has {shape.layers} layers on {model.num_steps} steps; convert it at its "
            "own depth"
        )
    return on_grid(model.field, model.num_steps)


def _changes(source: Trained, conversion: Conversion) -> dict[str, Any]:
    """What the configuration changes."""
    model, shape = source.model, source.config.model.config
    size = model.horizon / model.num_steps
    changes = {"horizon": model.horizon, "residual_scale": None, "num_layers": None}
    changes |= conversion.options
    changes["field"] = "cycle" if conversion.field == "looped" else conversion.field
    if conversion.field != "looped" and {"prelude", "coda"} & conversion.options.keys():
        raise UserError(
            f"--prelude and --coda are own layers around a loop, and {conversion.field} is fitted "
            "to all layers; leave them out, or choose --field looped"
        )
    if conversion.field not in ("cycle", "looped"):
        return changes
    if shape.scheme not in ("residual", "euler") or shape.composition != "sequential":
        raise UserError(
            f"a loop runs layers one after another, and this model has scheme {shape.scheme}, "
            f"{shape.composition}; choose low-rank, basis, gated or shared"
        )
    if shape.injection != "none":
        raise UserError(
            f"this model's injection ({shape.injection}) enters before every layer, and would "
            "before every loop; choose low-rank, basis, gated or shared"
        )
    ends = 0
    if conversion.field == "looped":
        if size != 1.0:
            raise UserError("own layers before and after a loop are residual; choose cycle")
        changes = {"prelude": 1, "coda": 1, **changes}
        ends = int(changes["prelude"]) + int(changes["coda"])
    loop = int(changes.get("layers_per_loop") or shape.layers_per_loop)
    left = model.num_steps - ends
    if left < 1:
        raise UserError(
            f"a prelude and a coda of {ends} layers leave none of {model.num_steps} for the loop; "
            "choose less"
        )
    if loop < 1 or left % loop:
        raise UserError(
            f"{left} of {model.num_steps} layers do not divide into loops of {loop}; choose "
            "another layers_per_loop, prelude or coda"
        )
    steps = left // loop
    return {
        **changes,
        "layers_per_loop": loop,
        "num_steps": steps,
        "horizon": size * steps,
        "depth_dial": "repeat",
    }


def layers_in_effect(model: LanguageModel, branches: int) -> list[Block]:
    """The ordinary layers, of so many branches each, that a model runs on its own grid: NumPy's
    arrays."""
    found = []
    for segment in model.segments:
        blocks = jax.tree.map(np.asarray, on_grid(segment.field, segment.num_steps))
        for index in range(segment.num_steps):
            every = take(blocks, index).branches
            found += [Block(every[at : at + branches]) for at in range(0, len(every), branches)]
    return found


def lost(source: Trained, converted: Trained) -> dict[str, float]:
    """|W' - W| / |W| over all layers (Frobenius), of every matrix by its name, and of `all`."""
    branches = len(source.config.model.config.mixers)
    sums: dict[str, np.ndarray] = {}
    pairs = [layers_in_effect(each.model, branches) for each in (source, converted)]
    for before, after in zip(*pairs, strict=True):
        found = leaves_with_nodes(before)
        for (nodes, names, old), new in zip(found, jax.tree.leaves(after), strict=True):
            if not is_matrix(nodes[-1].roles[names[-1]]):
                continue
            old, new = np.asarray(old, np.float64), np.asarray(new, np.float64)
            terms = np.array([np.square(new - old).sum(), np.square(old).sum()])
            name = ".".join(map(str, names[1:]))
            sums[name] = sums.get(name, 0.0) + terms
    sums["all"] = np.sum(list(sums.values()), axis=0)
    return {name: float(np.sqrt(error / size)) for name, (error, size) in sums.items()}
