"""What a search is: spaces over any option of a run, as text, and how many trials on which seeds.

optim.lr=log:1e-4:3e-2       between two numbers, evenly in the logarithm
model.dropout=uniform:0:0.3  between two numbers
model.d_state=32,64,128      one of these
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from qkvflow.errors import UserError, unknown
from qkvflow.runs.config_files import parse_overrides
from qkvflow.runs.sections import SECTIONS, typed
from qkvflow.zoo import ModelConfig

_RANGES = ("log", "uniform")


@dataclasses.dataclass(frozen=True)
class Space:
    """What one option may be."""

    key: str
    text: str
    kind: str
    """choice, log or uniform."""
    values: tuple[Any, ...]
    """The choices, or the two ends."""

    def suggest(self, trial: Any) -> Any:
        """Of an Optuna trial."""
        if self.kind == "choice":
            return trial.suggest_categorical(self.key, list(self.values))
        whole = isinstance(self.values[0], int)
        suggest = trial.suggest_int if whole else trial.suggest_float
        return suggest(self.key, *self.values, log=self.kind == "log")


def parse_spaces(searches: Iterable[str] | Mapping[str, Any]) -> tuple[Space, ...]:
    """Spaces from `key=space` texts, or from a mapping of them."""
    if isinstance(searches, Mapping):
        searches = [f"{key}={value}" for key, value in searches.items()]
    spaces = [_parse(text) for text in searches]
    keys = [space.key for space in spaces]
    if not spaces:
        raise UserError("nothing to search over; give --search, e.g. optim.lr=log:1e-4:3e-2")
    for key in keys:
        if keys.count(key) > 1:
            raise UserError(f"{key} is searched twice; give it one space")
    return tuple(spaces)


def _parse(text: str) -> Space:
    key, equals, given = (part.strip() for part in text.partition("="))
    if not equals or not given:
        raise UserError(
            f"'{text}' is not a search space; write e.g. optim.lr=log:1e-4:3e-2 or "
            "model.d_state=32,64,128"
        )
    annotation = _annotation(key)
    kind, *ends = given.split(":")
    if kind not in _RANGES:
        parts = [part.strip() for part in given.split(",")]
        section, _, name = key.partition(".")
        read = [parse_overrides([(key, part)])[section][name] for part in parts]
        choices = tuple(typed(key, annotation, value) for value in read)
        if len(set(choices)) < len(choices):
            raise UserError(f"{key} has a choice twice: {given}")
        return _checked(Space(key, ",".join(map(str, choices)), "choice", choices))
    try:
        low, high = (typed(key, annotation, end) for end in ends)
    except ValueError as error:
        why = str(error) if isinstance(error, UserError) else "it needs two ends"
        raise UserError(f"{text}: {why}; write e.g. {key}={kind}:1:10") from None
    if not isinstance(low, int | float) or isinstance(low, bool):
        raise UserError(f"{key} is not a number; give it choices: {key}=A,B")
    if not low < high or (kind == "log" and low <= 0):
        raise UserError(f"{text}: the ends must grow" + ", from above 0" * (kind == "log"))
    return _checked(Space(key, f"{kind}:{low}:{high}", kind, (low, high)))


def _checked(space: Space) -> Space:
    """Refuse values that no run can have; whether they go together depends on the rest."""
    section, _, name = space.key.partition(".")
    if section != "model" and name != "grad_accum":
        for value in space.values:
            SECTIONS[section](**{name: value})
    return space


def _annotation(key: str) -> Any:
    """The type of an option."""
    section, _, name = key.partition(".")
    kinds = {"model": ModelConfig, **SECTIONS}
    if section not in kinds:
        raise unknown("section to search in", section, kinds)
    known: dict[str, Any] = {each.name: each.type for each in dataclasses.fields(kinds[section])}
    known |= {"name": str, "size": str} if section == "model" else {}
    if name not in known or key == "train.seed":
        raise unknown(f"{section} option to search over", name, set(known) - {"seed"})
    return known[name]


def nested(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """`{"optim.lr": 1e-3}` as a layer of a configuration."""
    made: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        made.setdefault(section, {})[name] = value
    return made


TRIALS = 20
FIRST_SEED = 1_000_001
"""Searches use the seeds from here on, and comparisons never do."""


@dataclasses.dataclass(frozen=True)
class Search:
    """Everything that decides a search but the run that it varies."""

    spaces: tuple[Space, ...]
    trials: int
    """Where all spaces are choices and this covers them, every point once; else Optuna's TPE."""
    seeds: tuple[int, ...] = (FIRST_SEED,)
    """A trial is a run for each; its loss is their mean."""
    prune: bool = True
    """Stop a trial whose loss is worse than the median of the others at the same point."""
    seed: int = 0
    """Of the sampler."""

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise UserError(f"trials must be at least 1, not {self.trials}")
        if not self.seeds:
            raise UserError("a search needs at least one seed of its own")

    @property
    def is_grid(self) -> bool:
        return self.trials >= self.points

    @property
    def points(self) -> float:
        """How many there are."""
        if any(space.kind != "choice" for space in self.spaces):
            return math.inf
        return float(math.prod(len(space.values) for space in self.spaces))

    def grid(self) -> Iterator[dict[str, Any]]:
        for values in itertools.product(*(space.values for space in self.spaces)):
            yield dict(zip((space.key for space in self.spaces), values, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `make_search` of them is this search again."""
        return {
            "search": {space.key: space.text for space in self.spaces},
            "trials": self.trials,
            "seeds": list(self.seeds),
            "prune": self.prune,
            "seed": self.seed,
        }


def make_search(
    search: Iterable[str] | Mapping[str, Any],
    *,
    trials: Any = None,
    seeds: Any = 1,
    prune: bool = True,
    seed: Any = 0,
) -> Search:
    """A search from plain values; `seeds` are a number of them, or the seeds themselves."""
    spaces = parse_spaces(search)
    if not isinstance(seeds, list | tuple):
        seeds = [FIRST_SEED + i for i in range(typed("seeds", int, seeds))]
    made = Search(
        spaces,
        TRIALS if trials is None else typed("trials", int, trials),
        tuple(typed("a seed", int, each) for each in seeds),
        typed("prune", bool, prune),
        typed("seed", int, seed),
    )
    if trials is None and made.points < math.inf:
        return dataclasses.replace(made, trials=int(made.points))
    return made
