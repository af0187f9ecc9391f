"""The configuration of a run: one document, the same names in Python, YAML and options.

A run is given by sections (`model`, `data`, `train`, `optim`, `checkpoint`, `distill`, `track`),
each a small dataclass whose fields are documented where they stand. `--optim.lr 1e-3` on the
command line is `optim: {lr: 1e-3}` in YAML and `{"optim": {"lr": 1e-3}}` in Python. See
`load_config`.
"""

import dataclasses
from typing import Any

from qkvflow.errors import UserError, unknown
from qkvflow.runs.depths import check_depths
from qkvflow.runs.sections import (
    SECTIONS,
    CheckpointConfig,
    DataConfig,
    DistillConfig,
    OptimConfig,
    TrackConfig,
    TrainConfig,
    typed,
)
from qkvflow.zoo import ModelConfig, configure, entry, modern
from qkvflow.zoo.plugins import (
    Plugin,
    check_plugins,
    missing_plugins,
    naming_missing,
    plugins_of,
    read_plugins,
)


@dataclasses.dataclass(frozen=True)
class ModelChoice:
    """Which model: an entry of the zoo, its size, and every field of its configuration."""

    name: str
    size: str
    config: ModelConfig


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run. Make one with `make_config` or `load_config`."""

    model: ModelChoice
    data: DataConfig
    train: TrainConfig
    optim: OptimConfig
    checkpoint: CheckpointConfig
    track: TrackConfig
    distill: DistillConfig = dataclasses.field(default_factory=DistillConfig)
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
