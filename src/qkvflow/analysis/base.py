"""What an analysis is: a question to a trained model, answered in plain arrays and in words."""

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Float, Int

from qkvflow.distributed.memory import check_fits, tree_bytes
from qkvflow.fields import Lora, LowRank, PerLayer
from qkvflow.fields.parts.time import LayerHats
from qkvflow.lm import LanguageModel
from qkvflow.schemes import grid

DENSE = 24
"""Depths at which a continuous field is looked at, where its own grid is coarser."""


@dataclass(frozen=True)
class Subject:
    """What is looked at: a model, made ready by `flow.in_steps`, and one text."""

    model: LanguageModel
    tokens: Int[np.ndarray, " seq"]
    name_of: Callable[[int], str]
    """The text of a token."""
    num_exponents: int | None = 16
    """How many Lyapunov exponents; None is all of them."""


class AbstractResult(abc.ABC):
    """A dataclass of arrays, which knows what they say."""

    @abc.abstractmethod
    def findings(self) -> list[str]:
        """The answer in whole sentences."""


class Analysis(abc.ABC):
    """One question, registered by its name in `ANALYSES`."""

    order: ClassVar[int] = 100
    """When it is told: lower numbers first, equal ones by name."""

    @abc.abstractmethod
    def run(self, subject: Subject) -> AbstractResult:
        """Ask it."""

    @abc.abstractmethod
    def lacks(self, model: LanguageModel) -> str | None:
        """Why a model cannot be asked this, or None if it can."""


def depths_of(model: LanguageModel, dense: int = DENSE) -> Float[np.ndarray, " depth"]:
    """Where a model's weights are looked at: its grid, refined where weights exist in between.

    The refined grid holds the points of the model's own. A field that interpolates between layers
    has nothing to say in between, so its own grid is all there is.
    """
    of = refinement(model.num_steps, dense)
    return grid(model.num_steps * (1 if _interpolates(model.field) else of))


def _interpolates(field: Any) -> bool:
    """Whether it has values at its layers alone, adapted or not."""
    if isinstance(field, Lora):
        return _interpolates(field.field)
    hats = jax.tree.leaves(field, is_leaf=lambda node: isinstance(node, LayerHats))
    return isinstance(field, PerLayer | LowRank) or any(isinstance(x, LayerHats) for x in hats)


def check_depths(
    model: LanguageModel, ts: Float[np.ndarray, " depth"], what: str, doubles: int = 0
) -> None:
    """Refuse to make a model's weights at these depths if they do not fit into memory, together
    with so many copies of them in double precision."""
    stack = tree_bytes(lambda: model.field.stack(ts))
    instead = "give fewer --num-steps, or take a machine with more"
    check_fits(stack, f"{what} at {len(ts)} depths", instead, host=2 * doubles * stack)


def refinement(num_steps: int, dense: int = DENSE) -> int:
    return max(1, dense // num_steps)


def own_depths(ts: Float[np.ndarray, " depth"], num_steps: int) -> Int[np.ndarray, " own"]:
    """Which of `ts` are the model's own grid points; all, if some of those are missing."""
    places = np.flatnonzero(np.isin(ts, grid(num_steps)))
    return places if len(places) == num_steps else np.arange(len(ts))


def to_arrays(result: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """A result as named arrays, `circuits/qk/eigenvalues`; what is None is left out."""
    if is_dataclass(result):
        result = {field.name: getattr(result, field.name) for field in fields(result)}
    if isinstance(result, Mapping):
        found: dict[str, np.ndarray] = {}
        for name, value in result.items():
            found |= to_arrays(value, f"{prefix}/{name}" if prefix else str(name))
        return found
    return {} if result is None else {prefix: np.asarray(result)}
