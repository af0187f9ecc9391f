"""Fields of a configuration that describe themselves: the options of the command line are made
from them."""

import dataclasses
from collections.abc import Iterable
from typing import Any


def option(default: Any, text: str, names: Iterable[str] = ()) -> Any:
    """A dataclass field with its default and its description; `names`, often a registry, are the
    values it may have, listed after the description."""
    return dataclasses.field(default=default, metadata={"help": text, "names": names})


def described(field: dataclasses.Field) -> str:
    """What `--help` says of a field."""
    names = ", ".join(field.metadata["names"])
    default = "none" if field.default is None else field.default
    listed = f": {names}" if names else ""
    return f"{field.metadata['help']}{listed} (default {default})"
