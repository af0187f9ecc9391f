"""What a family of checkpoints is: settings both ways, and a table of which tensor is which.

A table has one row for each array of ours. It is read in both directions, so that what can be
loaded can be saved.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from qkvflow.errors import UserError, one_line
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
    heads: int = 0
    """Where one tensor has queries, keys and values of each head together: how many heads."""


class Family(NamedTuple):
    block: str
    """The block it has."""
    prefix: str
    """In front of all names but the head's; checkpoints of the bare model leave it out."""
    read: Callable[[Settings], ModelConfig]
    rows: Callable[[ModelConfig, Settings], list[Row]]
    write: Callable[[ModelConfig], dict[str, Any]] | None = None
    """None: another family writes the same model."""
    ignored: tuple[str, ...] = ()
    """Endings of names that hold no weights (masks and frequencies of older versions)."""
    heads: tuple[str, ...] = ("lm_head.weight",)
    """Names of the head; the first is written."""


def ours_from(array: np.ndarray, row: Row) -> np.ndarray:
    if row.layout == "convolution":
        return array[:, 0].T if array.ndim == 3 else array
    array = array.T if row.layout == "transposed" else array
    return _regrouped(array, row.heads, 3)


def theirs_from(array: np.ndarray, row: Row) -> np.ndarray:
    if row.layout == "convolution":
        array = array[:, None].T
    array = _regrouped(array, 3, row.heads)
    return np.ascontiguousarray(array.T if row.layout == "transposed" else array)


def _regrouped(array: np.ndarray, outer: int, inner: int) -> np.ndarray:
    """The last axis, made of outer x inner groups, as inner x outer."""
    if not outer or not inner or array.shape[-1] % (outer * inner):
        return array
    split = array.reshape(*array.shape[:-1], outer, inner, -1)
    return np.swapaxes(split, -3, -2).reshape(array.shape)


def require(settings: Settings, name: str, value: Any, *others: Any) -> None:
    """Refuse settings with another value than the given ones; the first is the default."""
    found = settings.get(name, value)
    if found not in (value, *others):
        known = " or ".join(str(each) for each in (value, *others))
        raise UserError(f"unsupported {name} {one_line(found, 80)}; qkvflow can load {known} only")


def needed(settings: Settings, name: str) -> int:
    found = settings.get(name)
    if found is None:
        raise UserError(f"the Hugging Face configuration says nothing of {name}; add it")
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise UserError(f"{name} must be a positive whole number, not {one_line(found, 80)}")
    return found


def must_be(config: ModelConfig, **values: Any) -> None:
    """Refuse a configuration that the family cannot express."""
    for name, value in values.items():
        if (found := getattr(config, name)) != value:
            raise UserError(f"{name} {value}, not {found}")


def attention_biases(config: ModelConfig) -> tuple[bool, bool]:
    """Of queries, keys and values, and of the output."""
    bias = config.bias if config.attention_bias is None else config.attention_bias
    return bias, bias if config.attention_out_bias is None else config.attention_out_bias
