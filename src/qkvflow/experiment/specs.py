"""Models as text: `name`, `name:key=value,key=value`, `label=name:key=value`.

    standard
    time-indexed-mlp:frozen_time=0.5
    frozen=time-indexed-mlp:frozen_time=0.5,gate=both
    standard-narrow=standard:params_of=time-indexed-mlp

    tuned=runs/search/best.yaml

A key is any field of `ModelConfig`, `size`, `optim.FIELD` for an optimiser of its own, or one of
two that ask for a width: `params_of=LABEL` and `flops_of=LABEL` rescale this model to another one
of the comparison (see `matching`). A file is the configuration of a run, as a search writes it: its
model and its optimiser.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from qkvflow.errors import UserError, unknown
from qkvflow.runs.config import make_config
from qkvflow.runs.config_files import parse_overrides, read_yaml
from qkvflow.runs.sections import OptimConfig
from qkvflow.zoo import MODELS, PUBLISHED, ModelConfig

MATCHES = {"params_of": "params", "flops_of": "flops"}
_FIELDS = tuple(field.name for field in dataclasses.fields(ModelConfig))
_OPTIM = tuple(f"optim.{field.name}" for field in dataclasses.fields(OptimConfig))
_OPTIONS = (*_FIELDS, "size", *MATCHES, *_OPTIM)
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@+:=,-]*")


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """One model of a comparison."""

    label: str
    name: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in MODELS and self.name not in PUBLISHED:
            raise unknown("model", self.name, [*MODELS, *PUBLISHED])
        for key in self.options:
            if key not in _OPTIONS:
                raise unknown(f"option of {self.name}", str(key), _OPTIONS)
        if not _LABEL.fullmatch(self.label):
            raise UserError(f"'{self.label}' cannot be a label; use letters, digits, - and _")

    @property
    def changes(self) -> dict[str, Any]:
        """What it changes of the zoo's entry, as a `model` section of a configuration."""
        kept = {key: value for key, value in self.options.items() if key in (*_FIELDS, "size")}
        return {"name": self.name, **kept}

    @property
    def optim(self) -> dict[str, Any]:
        """What it changes of the optimiser that all share."""
        given = self.options.items()
        return {key.removeprefix("optim."): value for key, value in given if key in _OPTIM}

    @property
    def matched_to(self) -> tuple[str, str] | None:
        """(`params` or `flops`, label) when this model asks for the width that gives it those."""
        asked = [(MATCHES[key], str(self.options[key])) for key in MATCHES if key in self.options]
        if len(asked) > 1:
            raise UserError(f"{self.label}: give params_of or flops_of, not both")
        return asked[0] if asked else None

    def to_dict(self) -> dict[str, Any]:
        return {"label": self.label, "name": self.name, "options": dict(self.options)}


def parse_spec(text: str) -> ModelSpec:
    """One model from its text."""
    label, equals, path = text.strip().rpartition("=")
    if path.endswith((".yaml", ".yml")) and ":" not in label:
        return _of_file(label.strip(), path.strip())
    head, colon, rest = text.strip().partition(":")
    label, equals, name = head.partition("=")
    if not equals:
        label, name = text.strip().replace("/", "-"), head
    if not name or not label or (colon and not rest):
        raise UserError(f"'{text}' is not a model; write name, name:key=value or label=name")
    pairs = []
    for part in rest.split(",") if rest else ():
        key, equals, value = (each.strip() for each in part.partition("="))
        if not equals or not key or not value:
            raise UserError(f"'{part}' in '{text}' is not an option; write key=value")
        pairs.append((key if key in _OPTIM else f"model.{key}", value))
    options = parse_overrides(pairs)
    optim = {f"optim.{key}": value for key, value in options.get("optim", {}).items()}
    return ModelSpec(label.strip(), name.strip(), {**options.get("model", {}), **optim})


def _of_file(label: str, path: str) -> ModelSpec:
    """The model and the optimiser of a run's configuration."""
    content = read_yaml(path)
    make_config(content)  # Refuses what is no configuration.
    model = dict(content.get("model") or {})
    name = str(model.pop("name", "standard"))
    optim = {f"optim.{key}": value for key, value in (content.get("optim") or {}).items()}
    return ModelSpec(label or name, name, {**model, **optim})


def parse_specs(texts: Iterable[str]) -> tuple[ModelSpec, ...]:
    """Models separated by commas. After `name:key=value`, a part that begins with the name of an
    option goes on with that model; any other begins the next."""
    pieces: list[str] = []
    for part in (part.strip() for text in texts for part in text.split(",")):
        key = part.partition("=")[0].strip()
        goes_on = pieces and ":" in pieces[-1] and "=" in part and ":" not in part
        if goes_on and key in _OPTIONS:
            pieces[-1] += f",{part}"
        elif part:
            pieces.append(part)
    return tuple(parse_spec(piece) for piece in pieces)


def read_spec(value: Any) -> ModelSpec:
    """A model of a plan in YAML: text, or an object with `label`, `name`, `options`."""
    if isinstance(value, str):
        return parse_spec(value)
    if not isinstance(value, Mapping) or "name" not in value:
        raise UserError(f"a model of a plan is text or has a name, not {value!r}")
    for key in value:
        if key not in ("label", "name", "options"):
            raise unknown("field of a model", str(key), ("label", "name", "options"))
    options = value.get("options") or {}
    if not isinstance(options, Mapping):
        raise UserError(f"options of {value['name']} must be key: value, not {options!r}")
    label = str(value.get("label") or value["name"]).replace("/", "-")
    return ModelSpec(label, str(value["name"]), dict(options))
