"""Configurations as YAML files and as dotted options."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import yaml

from qkvflow.errors import UserError, one_line
from qkvflow.runs.config import RunConfig, make_config
from qkvflow.runs.sections import SECTIONS
from qkvflow.zoo import ModelConfig

_MOST_VALUES, _MOST_DEPTH = 100_000, 50
_MOST_INTEGER = (1 << 63) - 1


def load_config(path: str | Path | None, overrides: dict[str, Any] | None = None) -> RunConfig:
    """The configuration of a YAML file (or the defaults), with overrides on top."""
    return make_config({} if path is None else read_yaml(path), overrides or {})


def read_yaml(path: str | Path) -> dict[str, Any]:
    """A mapping from a YAML file; data only, nothing in it is executed."""
    try:
        content = yaml.safe_load(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(f"no configuration {path}; check the path") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; check the file") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # Dates and tags are ValueErrors.
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}"
        raise UserError(f"{path}{where} is not YAML; correct it") from None
    except RecursionError:
        raise UserError(f"{path} is nested too deeply; flatten it") from None
    if problem := _problem(content):
        raise UserError(f"{path} {problem}")
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a configuration: its top level must be sections")
    return content


def _problem(content: Any) -> str | None:
    """What no configuration has: aliases that expand without end, keys that are not text, numbers
    that no computer counts in. Found before any of it is printed."""
    left, waiting = _MOST_VALUES, [(content, 0)]
    while waiting:
        value, depth = waiting.pop()
        left -= 1
        if left < 0 or depth > _MOST_DEPTH:
            return "is too large or too deep for a configuration; write it without aliases"
        if isinstance(value, dict):
            if odd := [key for key in value if not isinstance(key, str)]:
                return f"has the key {one_line(repr(odd[0]), 40)}, which is not a name; quote it"
            waiting += [(each, depth + 1) for each in value.values()]
        elif isinstance(value, list | tuple | set):
            waiting += [(each, depth + 1) for each in value]
        elif isinstance(value, int) and abs(value) > _MOST_INTEGER:
            return f"has a number of {value.bit_length()} bits; write one below 2^63"
    return None


def write_yaml(config: RunConfig) -> str:
    """The resolved configuration as YAML text; reading it back gives an equal one."""
    return yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True)


def parse_overrides(options: Iterable[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """`("optim.lr", "1e-3")`, ... as nested dictionaries; values are read as YAML scalars, but
    for options that are text."""
    nested: dict[str, dict[str, Any]] = {}
    for key, text in options:
        section, dot, name = key.partition(".")
        if not dot:
            raise UserError(f"'{key}' names no section; write e.g. optim.lr")
        value = _scalar(text)
        # A name or a path may look like a number; null is null.
        keeps = value is not None and _is_text(section, name)
        nested.setdefault(section, {})[name] = text if keeps else value
    return nested


def _is_text(section: str, name: str) -> bool:
    """Whether an option is a name or a path, of which 007 is one."""
    if (section, name) in (("model", "name"), ("model", "size")):
        return True
    kind = ModelConfig if section == "model" else SECTIONS.get(section)
    known = {} if kind is None else {each.name: each.type for each in dataclasses.fields(kind)}
    return name in known and (get_args(known[name]) or (known[name],))[0] is str


def _scalar(text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError):
        return text
    if isinstance(value, int) and abs(value) > _MOST_INTEGER:
        raise UserError(f"{one_line(text, 40)} is too large a number; write one below 2^63")
    # `file:PATH?split=0.9,0.1` and dates are text; so is anything that is not a plain scalar.
    return value if isinstance(value, int | float | bool) or value is None else text
