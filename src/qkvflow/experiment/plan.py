"""The plan of a comparison: models x seeds x one budget, as data.

`plan.yaml` is the whole plan; `qkvflow compare --config plan.yaml --out NEW` repeats it. What
follows from a plan and its corpus (shapes, steps, hashes) is added to the file under `resolved`,
which is ignored when the file is read.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from qkvflow.errors import UserError, unknown
from qkvflow.experiment.search import FIRST_SEED, Search, make_search
from qkvflow.experiment.specs import ModelSpec, read_spec
from qkvflow.runs.config import RunConfig, make_config
from qkvflow.runs.sections import (
    CheckpointConfig,
    DataConfig,
    OptimConfig,
    TrackConfig,
    TrainConfig,
    typed,
)

BUDGETS = ("steps", "tokens", "flops", "seconds")
MATCH = ("params", "flops")
TUNING_RATES = "3e-4,1e-3,3e-3,1e-2"
# The plan decides these for every run; the rest of the section is shared.
_DECIDED = ("steps", "tokens", "seed", "eval_every", "target_loss")
_INSTEAD = {
    "steps": "a budget such as --steps",
    "tokens": "a budget such as --tokens",
    "seed": "--seeds",
    "eval_every": "--evaluations",
    "target_loss": "a budget: time to a loss is read off the curves",
}


@dataclasses.dataclass(frozen=True)
class Budget:
    """What every run may spend: optimiser steps, tokens, training FLOPs or seconds."""

    kind: str
    amount: int | float

    def __post_init__(self) -> None:
        if self.kind not in BUDGETS:
            raise unknown("budget", self.kind, BUDGETS)
        if not self.amount > 0:
            raise UserError(f"the budget in {self.kind} must be positive, not {self.amount}")

    def to_dict(self) -> dict[str, Any]:
        return {self.kind: self.amount}


@dataclasses.dataclass(frozen=True)
class Question:
    """A named pair of models: is `a` better than `b`?"""

    name: str
    a: str
    b: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that decides a comparison. Make one with `make_plan`."""

    models: tuple[ModelSpec, ...]
    seeds: tuple[int, ...]
    budget: Budget
    data: DataConfig
    train: TrainConfig
    optim: OptimConfig
    checkpoint: CheckpointConfig
    track: TrackConfig
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the model's configuration, shared by all; a model's own options go before."""
    title: str | None = None
    reference: str = ""
    """The label the others are matched to and compared with; the first model if not given."""
    match: str | None = None
    """params or flops: every width is rescaled to the reference's."""
    tune: Search | None = None
    """Choose each model's learning rate, or more of `optim`, on validation; none: all share it."""
    questions: tuple[Question, ...] = ()
    evaluations: int = 4
    """Evaluations on validation in a run, evenly spread; the best of them is selected."""
    speed_rounds: int = 7
    """Rounds of the speed measurement; 0 for none."""

    def __post_init__(self) -> None:
        if not self.models:
            raise UserError("a comparison needs at least one model")
        labels = self.labels
        for label in labels:
            if labels.count(label) > 1:
                raise UserError(
                    f"two models are called '{label}'; give one a label: other={label}:..."
                )
        if not self.seeds:
            raise UserError("a comparison needs at least one seed")
        check_seeds(self.seeds)
        if kept := [seed for seed in self.seeds if FIRST_SEED <= seed < FIRST_SEED + _MOST_SEEDS]:
            raise UserError(f"seed {kept[0]} is kept for searches; choose one below {FIRST_SEED}")
        object.__setattr__(self, "reference", self.reference or labels[0])
        for label in (self.reference, *(s.matched_to[1] for s in self.models if s.matched_to)):
            if label not in labels:
                raise unknown("model of this comparison", label, labels)
        for question in self.questions:
            for label in (question.a, question.b):
                if label not in labels:
                    raise unknown(f"model in question '{question.name}'", label, labels)
        if self.match is not None and self.match not in MATCH:
            raise unknown("match", self.match, MATCH)
        if self.evaluations < 1:
            raise UserError(f"evaluations must be at least 1, not {self.evaluations}")
        if self.speed_rounds < 0:
            raise UserError(f"speed_rounds must not be negative, not {self.speed_rounds}")
        if self.tune is not None:
            check_seeds(self.tune.seeds)
            both = sorted(set(self.tune.seeds) & set(self.seeds))
            if both:
                raise UserError(f"seed {both[0]} is of the comparison; tune on seeds of its own")
            for space in self.tune.spaces:
                if not space.key.startswith("optim."):
                    raise UserError(
                        f"a comparison tunes options of optim alone, not {space.key}; search with "
                        "'qkvflow tune' and give its best.yaml as a model"
                    )

    @property
    def labels(self) -> list[str]:
        return [spec.label for spec in self.models]

    def base_config(self, spec: ModelSpec) -> RunConfig:
        """The configuration of a model before matching, budget and seed."""
        return make_config(
            # The zoo's entry, then what all share, then what is this model's own.
            {"model": {**self.model, **spec.changes}, **self._sections()},
            {"optim": spec.optim},
        )

    def _sections(self) -> dict[str, dict[str, Any]]:
        train = {k: v for k, v in dataclasses.asdict(self.train).items() if k not in _DECIDED}
        return {
            "data": dataclasses.asdict(self.data),
            "train": train,
            "optim": dataclasses.asdict(self.optim),
            "checkpoint": dataclasses.asdict(self.checkpoint),
            "track": dataclasses.asdict(self.track),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `make_plan` of them is this plan again."""
        return {
            "title": self.title,
            "models": [spec.to_dict() for spec in self.models],
            "reference": self.reference,
            "seeds": list(self.seeds),
            "budget": self.budget.to_dict(),
            "match": self.match,
            "tune": None if self.tune is None else self.tune.to_dict(),
            "questions": [dataclasses.asdict(question) for question in self.questions],
            "evaluations": self.evaluations,
            "speed_rounds": self.speed_rounds,
            "model": dict(self.model),
            **self._sections(),
        }


def check_seeds(seeds: tuple[int, ...]) -> None:
    if len(set(seeds)) < len(seeds):
        raise UserError(f"a seed is given twice: {', '.join(map(str, seeds))}")
    for seed in seeds:
        if not 0 <= seed <= 0x7FFFFFFF:
            raise UserError(f"a seed must be from 0 to 2^31 - 1, not {seed}")


_KEYS = tuple(field.name for field in dataclasses.fields(Plan))
# Written beside the plan, and not part of it.
_BESIDE = ("resolved", "command")
# What a run of a comparison does unless it is told otherwise.
_OF_RUNS: dict[str, dict[str, Any]] = {
    "train": {"eval_tokens": None, "samples": "last"},
    "checkpoint": {"finished": "best"},
}


def modern(content: Mapping[str, Any]) -> dict[str, Any]:
    """A plan under today's names: saved ones may be older than they are."""
    plan = dict(content)
    plan.pop("plugins", None)  # A plan is data; plugins are given to the command.
    plan.pop("weights", None)
    if not isinstance(plan.get("train") or {}, Mapping):
        raise UserError("train must be options by name; correct the plan")
    train = dict(plan.get("train") or {})
    if depths := plan.pop("depths", None):
        train.setdefault("eval_depths", ",".join(map(str, depths)))
    if samples := plan.pop("samples", None):
        train.setdefault("samples", samples)
    tune = plan.get("tune")
    if isinstance(tune, Mapping) and "grid" in tune:
        rates = ",".join(map(str, tune["grid"]))
        plan["tune"] = {"search": {"optim.lr": rates}, "seeds": tune.get("seeds", 2)}
    return {**plan, "train": train} if train else plan


def make_plan(content: Mapping[str, Any]) -> Plan:
    """A plan from plain values, as in `plan.yaml`."""
    content = modern(content)
    for key in content:
        if key not in _KEYS and key not in _BESIDE:
            raise unknown("part of a plan", str(key), _KEYS)
    given = {key: value for key, value in content.items() if key in _KEYS and value is not None}
    for key, kind in (("models", list), ("questions", list), ("budget", Mapping)):
        if key in given and not isinstance(given[key], kind | tuple):
            raise UserError(f"{key} of a plan has the wrong form: {given[key]!r}")
    budget = _budget(given.pop("budget", {}))
    train = dict(given.get("train", {}))
    for key in _DECIDED:
        if key in train:
            raise UserError(f"train.{key} is not for a comparison; give {_INSTEAD[key]}")
    names = ("data", "train", "optim", "checkpoint", "track")
    sections = {name: given.pop(name, {}) for name in names}
    shared = make_config(_OF_RUNS, sections)
    tune = given.pop("tune", None)
    return Plan(
        models=tuple(read_spec(value) for value in given.pop("models", ())),
        seeds=seeds_of(given.pop("seeds", 3)),
        budget=budget,
        data=shared.data,
        train=shared.train,
        optim=shared.optim,
        checkpoint=shared.checkpoint,
        track=shared.track,
        tune=_tuning(tune),
        questions=tuple(_question(each) for each in given.pop("questions", ())),
        evaluations=typed("evaluations", int, given.pop("evaluations", 4)),
        speed_rounds=typed("speed_rounds", int, given.pop("speed_rounds", 7)),
        model=_shared_model(given.pop("model", {})),
        **given,
    )


_MOST_SEEDS = 10_000


def seeds_of(value: Any) -> tuple[int, ...]:
    """A number of seeds (0, 1, ...), or the seeds themselves."""
    if isinstance(value, list | tuple):
        return tuple(typed("a seed", int, seed) for seed in value)
    count = typed("seeds", int, value)
    if not 1 <= count <= _MOST_SEEDS:
        raise UserError(f"seeds must be at least 1 and at most {_MOST_SEEDS}, not {count}")
    return tuple(range(count))


def _budget(values: Mapping[str, Any]) -> Budget:
    if len(values) != 1:
        raise UserError(f"give one budget of {', '.join(BUDGETS)}, not {len(values)}")
    ((kind, amount),) = values.items()
    whole = int if kind in ("steps", "tokens") else float
    return Budget(str(kind), typed(f"the budget in {kind}", whole, amount))


def _tuning(value: Any) -> Search | None:
    """`lr`, `lr=1e-3,3e-3`, several such texts, or the parts of a `Search`."""
    if value is None:
        return None
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, list | tuple):
        value = {"search": dict(_tuned(str(text)) for text in texts)}
    known = ("search", "trials", "seeds", "prune", "seed")
    if not isinstance(value, Mapping) or set(value) - set(known):
        raise UserError(
            f"tune must be lr, lr=1e-3,3e-3, or have a search, trials and seeds, not {value!r}"
        )
    search = {"search": {"optim.lr": TUNING_RATES}, "seeds": 2, "prune": False}
    return make_search(**{**search, **value})


def _tuned(text: str) -> tuple[str, str]:
    key, _, space = text.partition("=")
    key = "optim.lr" if key == "lr" else key
    return key, space or (TUNING_RATES if key == "optim.lr" else "")


def _question(value: Any) -> Question:
    try:
        return Question(*(str(value[key]) for key in ("name", "a", "b")))
    except (KeyError, TypeError):
        raise UserError(f"a question has name, a and b, not {value!r}") from None


def _shared_model(values: Any) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise UserError(f"model must be a section of options, not {values!r}")
    if "name" in values:
        raise UserError("model.name is not for a comparison; give --models")
    return dict(values)


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """The first way in which two plans are not the same comparison, in words.

    What changes no result may change: checkpoints, trackers, how often losses are written, and how
    FLOPs are counted.
    """
    was, now = _flat(modern(old)), _flat(modern(new))
    for key in dict.fromkeys([*now, *was]):
        if key.startswith(("checkpoint.", "track.")) or key in _FREE:
            continue
        # Earlier versions have written `2` where `"2"` was given.
        if not key.endswith(".flops_per_token") and _show(was.get(key)) != _show(now.get(key)):
            return f"{key} was {_show(was.get(key))}, now {_show(now.get(key))}"
    return None


_FREE = ("command", "title", "speed_rounds", "data.dir", "train.steps_per_dispatch")


def _show(value: Any) -> str:
    return "none" if value is None else str(value)


def _flat(content: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        name = f"{above}{key}"
        if key == "models" and not isinstance(value, Mapping):
            flat[name] = ", ".join(str(each["label"]) for each in value)
            for each in value:
                own = {k: v for k, v in each.items() if k != "label"}
                flat |= _flat(own, f"{name}.{each['label']}.")
        elif isinstance(value, Mapping):
            flat |= _flat(value, f"{name}.")
        else:
            flat[name] = list(value) if isinstance(value, tuple) else value
    return flat
