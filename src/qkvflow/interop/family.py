"""What a family of checkpoints is: settings both ways, and a table of which tensor is which.

A table has one row for each array of ours. It is read in both directions, so that what can be
loaded can be saved.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from qkvflow.errors import UserError
from qkvflow.zoo import ModelConfig

Settings = Mapping[str, Any]
"""The contents of a `config.json`."""

Orientation = Literal["same", "transposed", "convolution"]
"""How an array of theirs lies compared with ours:

same         as ours
transposed   `out in`, where ours are `in out` (a PyTorch linear layer)
convolution  `channels 1 width`, where ours is `width channels`
"""

BLOCK = "field.layers.block."
"""Where the arrays of a block lie in a per-layer model, with a leading layer axis."""


class Row(NamedTuple):
    """One array of ours and the tensors it is made of, joined along its last axis.

    Names of block arrays are relative to the block; `{}` in their names is the layer. No tensors:
    ours is 0.
    """

    ours: str
    theirs: tuple[str, ...]
    layout: Orientation = "same"
    sizes: tuple[int, ...] = ()
    """Sizes along the last axis of ours, where several tensors are joined."""


class Family(NamedTuple):
    prefix: str
    """In front of all names but the head's; checkpoints of the bare model leave it out."""
    ignored: tuple[str, ...]
    """Endings of names that hold no weights (masks and frequencies of older versions)."""
    read: Callable[[Settings], ModelConfig]
    write: Callable[[ModelConfig], dict[str, Any]]
    rows: Callable[[ModelConfig, Settings], list[Row]]


def ours_from(array: np.ndarray, layout: Orientation) -> np.ndarray:
    if layout == "convolution":
        return array[:, 0].T if array.ndim == 3 else array
    return array.T if layout == "transposed" else array


def theirs_from(array: np.ndarray, layout: Orientation) -> np.ndarray:
    array = array[:, None].T if layout == "convolution" else array
    return np.ascontiguousarray(array.T if layout == "transposed" else array)


def require(settings: Settings, name: str, value: Any, *others: Any) -> None:
    """Refuse settings with another value than the given ones; the first is the default."""
    found = settings.get(name, value)
    if found not in (value, *others):
        known = " or ".join(str(each) for each in (value, *others))
        raise UserError(f"unsupported {name} {found}; qkvflow can load {known} only")


def needed(settings: Settings, name: str) -> Any:
    if settings.get(name) is None:
        raise UserError(f"the Hugging Face configuration says nothing of {name}; add it")
    return settings[name]


def must_be(config: ModelConfig, kind: str, **values: Any) -> None:
    """Refuse a configuration that the family cannot express."""
    for name, value in values.items():
        if (found := getattr(config, name)) != value:
            raise UserError(f"a {kind} checkpoint needs {name} {value}, not {found}")
