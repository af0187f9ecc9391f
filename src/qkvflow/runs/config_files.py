"""Configurations as YAML files and as dotted options."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from qkvflow.errors import UserError
from qkvflow.runs.config import RunConfig, make_config


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
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}"
        raise UserError(f"{path}{where} is not YAML; correct it") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a configuration: its top level must be sections")
    return content


def write_yaml(config: RunConfig) -> str:
    """The resolved configuration as YAML text; reading it back gives an equal one."""
    return yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True)


def parse_overrides(options: Iterable[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """`("optim.lr", "1e-3")`, ... as nested dictionaries; values are read as YAML scalars."""
    nested: dict[str, dict[str, Any]] = {}
    for key, text in options:
        section, dot, name = key.partition(".")
        if not dot:
            raise UserError(f"'{key}' names no section; write e.g. optim.lr")
        nested.setdefault(section, {})[name] = _scalar(text)
    return nested


def _scalar(text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    # `file:PATH?split=0.9,0.1` and dates are text; so is anything that is not a plain scalar.
    return value if isinstance(value, int | float | bool) or value is None else text
