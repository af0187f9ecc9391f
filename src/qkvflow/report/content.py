"""What a report is made of. Filled by `gather`, read by everything that draws or writes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkvflow.records import Records
from qkvflow.report.curves import Band


@dataclass(frozen=True)
class Speed:
    """Time of one optimiser step in milliseconds.

    `measured` is True for `speed.json` (its own interleaved rounds: median and quartiles) and
    False for training time divided by steps, one value per seed.
    """

    median: float
    q1: float
    q3: float
    rounds: tuple[float, ...]
    measured: bool
    tokens_per_second: float | None
    compile_seconds: float | None
    session: str | None = None
    """Where the rounds were measured in turn: those of two sessions are not paired."""


@dataclass(frozen=True)
class DepthLoss:
    """Loss of trained models run with another depth grid or scheme; mean and range over seeds."""

    num_steps: int | None
    scheme: str
    mean: float
    low: float
    high: float
    seeds: int


@dataclass(frozen=True)
class Sample:
    seed: int
    step: int | None
    text: str


@dataclass(frozen=True)
class Reach:
    """What training took to reach a validation loss: medians over the seeds that got there."""

    reached: int
    seeds: int
    seconds: float | None
    flops: float | None


@dataclass(frozen=True)
class Rates:
    """The learning rate a model was trained at, and those tried to choose it."""

    used: float | None
    tried: Mapping[float, float | None]
    """Mean validation loss of every rate of the grid; None where a trial failed. Empty if the rate
    was given and not chosen."""

    @property
    def edge(self) -> str | None:
        """`lowest` or `highest` if the rate chosen is an end of the grid."""
        ends = {min(self.tried): "lowest", max(self.tried): "highest"} if self.tried else {}
        return ends.get(self.used) if self.used is not None else None


@dataclass(frozen=True)
class Model:
    """One label. `summary` is its entry in `statistics_summary.json`."""

    label: str
    index: int
    group: int
    summary: Mapping[str, Any]
    config: Mapping[str, Any]
    name: str | None
    kinds: Mapping[str, Any]
    params: Mapping[str, float | None]
    flops_per_token: float | None
    flops: float | None
    seconds: float | None
    speed: Speed | None
    memory: float | None
    still_falling: bool
    skipped_updates: int
    rates: Rates
    train: Band | None = None
    validation: Band | None = None
    evaluations: tuple[DepthLoss, ...] = ()
    reach: Mapping[float, Reach] | None = None
    sample: Sample | None = None

    @property
    def seeds(self) -> list[int]:
        return self.summary["seeds"]

    def metric(self, split: str, unit: str = "nats") -> Mapping[str, Any]:
        return self.summary["metrics"][split][unit]


@dataclass(frozen=True)
class Baseline:
    """An n-gram model, or the known entropy rate of the data (`order` None)."""

    name: str
    order: int | None
    smoothing: str | None
    losses: Mapping[str, float | None]
    bits_per_byte: Mapping[str, float | None]
    seen: bool = False
    """Counted on as many tokens as the models trained on, not on the train split."""


@dataclass(frozen=True)
class Group:
    """Models whose losses compare: same evaluation text, same tokenizer."""

    title: str
    data: Mapping[str, Any]
    labels: tuple[str, ...]
    baselines: tuple[Baseline, ...]
    thresholds: Mapping[float, str]
    """Validation losses to reach, each with what it stands for."""

    def ngram(self, order: int, split: str) -> Baseline | None:
        """The n-gram model of an order on a split, counted on the train split."""
        whole = [b for b in self.baselines if b.order == order and not b.seen]
        found = [b for b in whole if b.losses[split] is not None]
        return min(found, key=lambda b: b.losses[split] or 0.0, default=None)

    @property
    def floor(self) -> Baseline | None:
        return next((b for b in self.baselines if b.order is None), None)


@dataclass(frozen=True)
class Question:
    """A question of the plan with its named pairs (entries of `significance_tests.json`)."""

    name: str
    pairs: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Report:
    """Everything on the page. `models` are in order of their loss, within each group."""

    directory: Path
    records: Records
    metric: str
    summary: Mapping[str, Any]
    tests: Mapping[str, Any]
    models: tuple[Model, ...]
    groups: tuple[Group, ...]
    plans: Mapping[str, str]
    """Text of each `plan.yaml`, by the name of its experiment."""
    plan: Mapping[str, Any]
    """The first plan, read; empty if there is none."""
    questions: tuple[Question, ...]
    memory_kind: str
    missing: tuple[str, ...]

    @property
    def pairs(self) -> list[Mapping[str, Any]]:
        return self.tests["all_pairs"]["pairs"]

    @property
    def corrected_for(self) -> str:
        """How many pairs Holm's correction covers, group by group."""
        sizes = [group["size"] for group in self.tests["all_pairs"]["groups"] if group["size"]]
        words = " and ".join(map(str, sizes or [0]))
        return f"{words} {'pair' if sizes == [1] else 'pairs'}"

    def model(self, label: str) -> Model:
        return next(model for model in self.models if model.label == label)

    def of(self, group: int) -> list[Model]:
        return [model for model in self.models if model.group == group]

    def compared(self, group: int) -> list[Model]:
        """The models of a group that have a loss."""
        return [m for m in self.of(group) if m.metric(self.metric)["mean"] is not None]

    def suffix(self, group: int) -> str:
        """What a title says of its group where there are several."""
        return f": {self.groups[group].title}" if len(self.groups) > 1 else ""

    def pair(self, a: str, b: str) -> tuple[Mapping[str, Any], int]:
        """The entry of a pair and its sign: -1 when the file has it as (b, a)."""
        for entry in self.pairs:
            if (entry["a"], entry["b"]) == (a, b):
                return entry, 1
            if (entry["a"], entry["b"]) == (b, a):
                return entry, -1
        raise KeyError((a, b))


def seen_from(pair: Mapping[str, Any], sign: int) -> str:
    """The kind of a pair's verdict, seen from a (sign 1) or from b (sign -1)."""
    kind: str = pair["verdict"]["kind"]
    mirrored = {"better": "worse", "worse": "better"}
    return mirrored.get(kind, kind) if sign < 0 else kind
