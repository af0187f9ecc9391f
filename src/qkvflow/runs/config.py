"""The configuration of a run: one document, the same names in Python, YAML and options.

A run is given by sections (`model`, `data`, `train`, `optim`, `checkpoint`, `track`), each a small
dataclass whose fields are documented where they stand. `--optim.lr 1e-3` on the command line is
`optim: {lr: 1e-3}` in YAML and `{"optim": {"lr": 1e-3}}` in Python. See `load_config`.
"""

import dataclasses
from types import NoneType
from typing import Any, get_args

from qkvflow.errors import UserError, unknown
from qkvflow.runs.depths import (
    check_depths,
    parse_depths,
    parse_jitter,
    parse_levels,
    parse_recurrence,
)
from qkvflow.runs.distillation import DistillConfig
from qkvflow.zoo import ModelConfig, configure, entry, modern, registry
from qkvflow.zoo.options import option
from qkvflow.zoo.plugins import (
    Plugin,
    check_plugins,
    missing_plugins,
    naming_missing,
    plugins_of,
    read_plugins,
)

SCHEDULES = ("cosine", "linear", "constant", "wsd")
TRAINABLE = ("all", "adapters", "gates")
SAMPLES = ("evaluations", "last", "none")
FINISHED = ("all", "best", "none")
PRETRAINED = "pretrained"
"""The corpus of a model that was imported: nobody here has it."""


@dataclasses.dataclass(frozen=True)
class ModelChoice:
    """Which model: an entry of the zoo, its size, and every field of its configuration."""

    name: str
    size: str
    config: ModelConfig


@dataclasses.dataclass(frozen=True)
class DataConfig:
    spec: str = option(
        "stdlib", "The corpus: stdlib, file:PATH, hf:NAME[:CONFIG], source:markov, source:recall."
    )
    dir: str | None = option(None, "A local copy of a Hugging Face dataset.")
    tokenizer: str = option(
        "byte",
        "The tokenizer: the path of a tokenizer.json, or NAME[:ARGUMENT] such as bpe:4096, of",
        registry.TOKENIZERS,
    )
    seed: int = option(
        0, "Seed of synthetic sources whose specification gives none (not of the batches)."
    )

    def __post_init__(self) -> None:
        _check(self, "data", positive=(), at_least_zero=("seed",))


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    steps: int = option(1000, "Optimiser steps.")
    tokens: int | None = option(
        None,
        "A budget in training tokens instead: steps are then tokens / (batch_size x context), up.",
    )
    batch_size: int = option(16, "Windows of one optimiser step, all accumulation steps together.")
    grad_accum: int = option(
        1, "Parts a batch is computed in, one after another: less memory, the same gradient."
    )
    seed: int = option(
        0, "Initial weights, batches and dropout. The same seed: the same batches for every model."
    )
    eval_every: int = option(
        250, "Steps between evaluations on the validation split (and always after the last)."
    )
    eval_tokens: int | None = option(
        65536,
        "Validation tokens of an evaluation during training, in windows spread evenly; none: "
        "all. The losses in the final record are always of whole splits.",
    )
    log_every: int = option(
        10, "Steps between lines of training loss (the mean since the line before)."
    )
    target_loss: float | None = option(
        None, "Stop at the first evaluation whose validation loss (nats per token) is at most this."
    )
    steps_per_dispatch: int | None = option(
        None,
        "Steps run as one program call; none: as many as take about half a second. No effect on "
        "results.",
    )
    max_skipped: int = option(
        10,
        "Updates in a row that may be skipped for a non-finite loss or gradient before stopping.",
    )
    depth_jitter: str = option(
        "none",
        "A random depth grid for every step: offset (a first step of random length, as in Tong "
        "et al.'s code), a range of numbers of steps such as 4-8 or 3,6,12, or both: "
        "offset+4-8.",
    )
    recurrence: str = option(
        "fixed",
        "Loops of the core in a step: fixed (num_steps), a range such as 4-32, or "
        "lognormal-poisson about num_steps (Geiping et al. 2025); with backprop_steps. +ramp:0.5 "
        "behind any of them: they grow from one to all over that share of the run.",
    )
    backprop_steps: int | None = option(
        None, "Gradients through the last so many steps of the core alone; none: through all."
    )
    trainable: str = option(
        "all", "Which arrays are trained: all, adapters, or gates (time features, gates and norms)."
    )
    start: str | None = option(
        None, "Set by `finetune`: the sha256 of the weights the run began from; none: fresh ones."
    )
    consistency: float = option(
        0.0, "Weight of the penalty on the distance between predictions at N and at 2N depth steps."
    )
    shortcut: float = option(
        0.0,
        "Weight of LoopFormer's shortcut consistency: a second pass of fewer steps of random "
        "lengths, whose numbers train.depth_jitter gives, is drawn to that of num_steps.",
    )
    exit_entropy: float = option(
        0.1, "Weight of the entropy of the exit distribution, for models with exit_gate."
    )
    samples: str = option(
        "evaluations",
        "Generated text in samples.txt: at evaluations, last (of the selected weights) or none.",
    )
    eval_depths: str = option(
        "none",
        "Other depths the finished model is evaluated at, for the record: multiples of its "
        "number of steps such as 0.5,2, and schemes such as adaptive.",
    )
    eval_levels: str = option(
        "none",
        "Other difficulties of a probe (hops, numbers, depth or pairs) that the finished model "
        "answers, for the record, such as 1,2,8.",
    )

    def __post_init__(self) -> None:
        positive = ("steps", "tokens", "batch_size", "grad_accum", "eval_every", "eval_tokens")
        positive += ("log_every", "steps_per_dispatch", "max_skipped", "backprop_steps")
        _check(self, "train", positive=positive, at_least_zero=("seed", "consistency", "shortcut", "exit_entropy"))
        parse_jitter(self.depth_jitter)
        parse_depths(self.eval_depths)
        parse_levels(self.eval_levels)
        parse_recurrence(self.recurrence)
        if self.trainable not in TRAINABLE:
            raise unknown("train.trainable", self.trainable, TRAINABLE)
        if self.samples not in SAMPLES:
            raise unknown("train.samples", self.samples, SAMPLES)
        if max(self.seed, self.batch_size) > 0x7FFFFFFF:
            raise UserError("train.seed and train.batch_size must be below 2^31")
        if self.batch_size % self.grad_accum:
            raise UserError(
                f"train.batch_size {self.batch_size} is not divisible by train.grad_accum "
                f"{self.grad_accum}; change one of them"
            )


@dataclasses.dataclass(frozen=True)
class OptimConfig:
    name: str = option(
        "adamw",
        "The optimiser (muon: on the blocks' matrices, AdamW on the rest)",
        registry.OPTIMISERS,
    )
    lr: float = option(1e-3, "Peak learning rate.")
    beta1: float = option(0.9, "Decay of the gradient's mean (momentum, for sgd and muon).")
    beta2: float = option(0.99, "Decay of the gradient's square.")
    eps: float = option(1e-8, "Added to the root of the gradient's square.")
    weight_decay: float = option(
        0.1, "Decoupled weight decay, on matrices only: not on biases, norms or vectors."
    )
    max_grad_norm: float = option(
        1.0, "Gradients are clipped to this global norm; 0 for no clipping."
    )
    schedule: str = option(
        "cosine",
        "After the warm-up: cosine, linear, constant, or wsd (constant, then linear to the end).",
    )
    warmup: int = option(100, "Steps of linear warm-up.")
    min_lr_ratio: float = option(
        0.1, "Last learning rate over the peak, for cosine, linear and wsd."
    )
    decay_fraction: float = option(0.2, "Last fraction of the steps, in which wsd decays.")

    def __post_init__(self) -> None:
        _check(
            self,
            "optim",
            positive=("lr", "eps"),
            at_least_zero=("weight_decay", "max_grad_norm", "warmup", "min_lr_ratio"),
        )
        registry.OPTIMISERS.check(self.name)
        if self.schedule not in SCHEDULES:
            raise unknown("schedule", self.schedule, SCHEDULES)
        for name in ("beta1", "beta2", "decay_fraction"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UserError(f"optim.{name} must be in [0, 1), not {getattr(self, name)}")


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    every: int = option(500, "Steps between checkpoints (and always after the last).")
    keep: int = option(2, "Latest checkpoints kept.")
    best: bool = option(
        True, "Keep the checkpoint of the best validation loss too, and report its losses."
    )
    finished: str = option(
        "all", "What a finished run keeps of them: all, best (the selected one alone) or none."
    )

    def __post_init__(self) -> None:
        _check(self, "checkpoint", positive=("every", "keep"), at_least_zero=())
        if self.finished not in FINISHED:
            raise unknown("checkpoint.finished", self.finished, FINISHED)


@dataclasses.dataclass(frozen=True)
class TrackConfig:
    name: str = option("none", "Where else metrics go, besides metrics.jsonl", registry.TRACKERS)
    project: str = option("qkvflow", "Project of wandb and trackio.")
    label: str | None = option(None, "How records call this run; none: the model's name.")
    group: str | None = option(
        None, "What runs belong together under, in wandb; a comparison sets it."
    )

    def __post_init__(self) -> None:
        _check(self, "track", positive=(), at_least_zero=())
        registry.TRACKERS.check(self.name)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run. Make one with `make_config` or `load_config`."""

    model: ModelChoice
    data: DataConfig
    train: TrainConfig
    optim: OptimConfig
    checkpoint: CheckpointConfig
    track: TrackConfig
    distill: DistillConfig = DistillConfig()
    plugins: tuple[Plugin, ...] = ()
    """Those with a member that the run names."""

    @property
    def context(self) -> int:
        return self.model.config.context

    @property
    def tokens_per_step(self) -> int:
        return self.train.batch_size * self.context

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `make_config` of them is this configuration again."""
        sections = {name: dataclasses.asdict(getattr(self, name)) for name in SECTIONS}
        model = {"name": self.model.name, "size": self.model.size, **self.model.config.to_dict()}
        plugins = [each.to_dict() for each in self.plugins]
        return {"model": model, **sections, **({"plugins": plugins} if plugins else {})}


SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "train": TrainConfig,
    "optim": OptimConfig,
    "checkpoint": CheckpointConfig,
    "track": TrackConfig,
    "distill": DistillConfig,
}


def make_config(*layers: dict[str, Any]) -> RunConfig:
    """A configuration from nested dictionaries, later ones over earlier ones.

    `make_config({"model": {"name": "tong", "d_model": 64}}, {"train": {"steps": 100}})`
    """
    recorded = tuple(each for layer in layers for each in read_plugins(layer.get("plugins", [])))
    check_plugins(recorded)
    with naming_missing(recorded):
        config = _make_config(layers)
        if missing_plugins(recorded):
            _check_data_names(config.data)
    _check_together(config)
    plugins = plugins_of(config.to_dict(), recorded)
    return _with_budget(dataclasses.replace(config, plugins=plugins))


def _make_config(layers: tuple[dict[str, Any], ...]) -> RunConfig:
    merged: dict[str, dict[str, Any]] = {name: {} for name in ("model", *SECTIONS)}
    for layer in layers:
        _merge(merged, {name: values for name, values in layer.items() if name != "plugins"})
    sections = {name: _section(name, kind, merged[name]) for name, kind in SECTIONS.items()}
    return RunConfig(model=_model(merged["model"]), **sections)


def _check_data_names(data: DataConfig) -> None:
    """Refuse a corpus and a tokenizer that are not known, before their files are looked for."""
    from qkvflow.data.corpora import find_kind
    from qkvflow.data.tokenizers import check_tokenizer

    find_kind(data.spec)
    check_tokenizer(data.tokenizer)


def _check_together(config: RunConfig) -> None:
    """Refuse sections that do not go together."""
    train = config.train
    check_depths(train, config.model.config)
    if train.trainable == "adapters" and config.model.config.lora == "none":
        raise UserError("train.trainable adapters needs a model with adapters; give model.lora")


def _merge(merged: dict[str, dict[str, Any]], layer: dict[str, Any]) -> None:
    for name, values in layer.items():
        if name not in merged:
            raise unknown("section", str(name), merged)
        if not isinstance(values, dict):
            raise UserError(f"{name} must be a section of options, not {values!r}")
        values = _renamed(name, values)
        if name == "model":
            merged[name] = _forget_entry(merged[name], values)
        if name == "train" and ("steps" in values) != ("tokens" in values):
            # A budget given later replaces one given earlier, whichever kind it was.
            merged[name].pop("tokens", None)
        merged[name].update(values)


_OLD_NAMES = {
    "train": {"only": "trainable"},
    "optim": {
        "clip": "max_grad_norm",
        "final_lr": "min_lr_ratio",
        "decay_share": "decay_fraction",
    },
}
"""Of options, as saved configurations have them; `zoo.modern` has those of models."""


def _renamed(section: str, values: dict[str, Any]) -> dict[str, Any]:
    old = _OLD_NAMES.get(section, {})
    values = modern(values) if section == "model" else values
    return {old.get(key, key): value for key, value in values.items()}


def _forget_entry(before: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """A saved configuration names every field. Where a later layer names another model or size,
    what was only the old entry's goes, and what was changed on purpose stays."""
    name, size = before.get("name", "standard"), before.get("size", "small")
    if values.get("name", name) == name and values.get("size", size) == size:
        return dict(before)
    old = configure(_entry(name, size), {}).to_dict()
    return {key: value for key, value in before.items() if key not in old or old[key] != value}


def _entry(name: Any, size: Any) -> dict[str, Any]:
    for what, value in (("name", name), ("size", size)):
        if not isinstance(value, str):
            raise UserError(f"model.{what} must be str, not {value!r}")
    return entry(name, size)


def _model(values: dict[str, Any]) -> ModelChoice:
    name, size = values.get("name", "standard"), values.get("size", "small")
    base = _entry(name, size)
    types = {each.name: each.type for each in dataclasses.fields(ModelConfig)}
    changes = {
        key: typed(f"model.{key}", types[key], value) if key in types else value
        for key, value in modern(values).items()
        if key not in ("name", "size")
    }
    return ModelChoice(name, size, configure(base, changes))


def _section(section: str, kind: type, values: dict[str, Any]) -> Any:
    types = {each.name: each.type for each in dataclasses.fields(kind)}
    for key in values:
        if key not in types:
            raise unknown(f"{section} option", str(key), types)
    made = {key: typed(f"{section}.{key}", types[key], value) for key, value in values.items()}
    return kind(**made)


def _with_budget(config: RunConfig) -> RunConfig:
    """Steps out of a budget of tokens."""
    train = config.train
    if train.tokens is None:
        return config
    steps = -(-train.tokens // config.tokens_per_step)
    return dataclasses.replace(config, train=dataclasses.replace(train, steps=steps))


def _check(
    section: Any, name: str, *, positive: tuple[str, ...], at_least_zero: tuple[str, ...]
) -> None:
    """Types and signs, refused where a section is made."""
    for each in dataclasses.fields(section):
        value = typed(f"{name}.{each.name}", each.type, getattr(section, each.name))
        object.__setattr__(section, each.name, value)
        if value is None:
            continue
        if each.name in positive and not value > 0:
            raise UserError(f"{name}.{each.name} must be positive, not {value}")
        if each.name in at_least_zero and not value >= 0:
            raise UserError(f"{name}.{each.name} must not be negative, not {value}")


def typed(name: str, annotation: Any, value: Any) -> Any:
    """The value in the type of its field, or an error that names both.

    YAML reads `1e-3` as text and `1e6` is a fine number of steps, so numbers may be either.
    """
    kinds = get_args(annotation) or (annotation,)
    if NoneType in kinds and (value is None or value in ("none", "None", "null")):
        return None
    kind = kinds[0]
    if kind is str and value is None:
        return "none"  # YAML's null, in a field that is a name
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        if kind is float and not abs(value) < float("inf"):
            raise UserError(f"{name} must be a finite number, not {value}")
        return value
    if kind in (int, float) and isinstance(value, int | float | str):
        try:
            number = float(value) if not isinstance(value, bool) else None
        except (ValueError, OverflowError):
            number = None
        if number is not None and abs(number) < float("inf"):
            if kind is float:
                return number
            if number == int(number):
                return int(number)
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
    raise UserError(f"{name} must be {words.get(kind.__name__, kind.__name__)}, not {value!r}")
