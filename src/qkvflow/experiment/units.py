"""Units of work: bring a run directory to its end, or measure the speed of models.

A unit is done when its file is there: `record.json` of a run, `speed.json` of a measurement.
Whoever executes it, and in which process, changes nothing of what it computes.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qkvflow.errors import UserError
from qkvflow.files import write_whole
from qkvflow.records import read_record
from qkvflow.runs import rundir
from qkvflow.runs.config import RunConfig, make_config
from qkvflow.runs.config_files import write_yaml
from qkvflow.runs.resume_rules import check_config
from qkvflow.runs.rundir import CONFIG, METRICS, RECORD, last_line, read_run_config, writing

ATTEMPTS = 3
"""How often a unit may be begun whose process dies."""


@dataclasses.dataclass(frozen=True)
class Unit:
    """One thing to do."""

    title: str
    job: Mapping[str, Any]
    """What `worker.perform` takes; plain JSON."""
    file: Path
    """Is there when the unit is done."""
    work: float
    """FLOPs, for the order and the time left."""
    program: str
    """Units of one program are not compiled side by side."""
    steps: int = 0
    bytes: int = 0
    """Memory it is expected to take."""

    @property
    def done(self) -> bool:
        if self.job.get("kind") == "run":  # One that was damaged is brought to its end again.
            return rundir.read_record(self.file.parent) is not None
        return self.file.exists()

    @property
    def metrics(self) -> Path:
        return self.file.parent / METRICS

    def result(self) -> str:
        """What came of it, in words."""
        try:
            losses = read_record(self.file).section("losses") if self.steps else {}
        except UserError:
            return "done"
        for split in ("test", "validation"):
            if losses.get(split):
                return f"{split} loss {losses[split]['nats']:.4f} nats per token"
        return "done"

    def progress(self) -> tuple[int, float | None]:
        """The last step that was written down, and its training loss."""
        line = last_line(self.metrics) if self.steps else None
        if line is None:
            return 0, None
        loss = line.get("loss")
        return int(line.get("step", 0)), loss if isinstance(loss, float) else None


def run_unit(
    directory: Path, title: str, config: RunConfig, *, flops_per_step: float, bytes: int = 0
) -> Unit:
    """The unit that brings a run directory to its end; one that is not there yet is made."""
    unit = Unit(
        title=title,
        job={"kind": "run", "directory": str(directory.resolve())},
        file=directory / RECORD,
        work=flops_per_step * config.train.steps,
        program=program_of(config),
        steps=config.train.steps,
        bytes=bytes,
    )
    if not unit.done and not _is_of(config, directory):
        with writing(directory):
            directory.mkdir(parents=True, exist_ok=True)
            write_whole(directory / CONFIG, write_yaml(config))
    return unit


def _is_of(config: RunConfig, directory: Path) -> bool:
    """Whether a run directory holds this configuration, but for what may change on the way: one
    that was damaged is written again."""
    try:
        written = make_config(read_run_config(directory))
        check_config(config.to_dict(), written, step=0, extend=True)
    except UserError:
        return False
    return True


def program_of(config: RunConfig) -> str:
    """Equal for runs that share a compiled program: all but what its arguments give."""
    content = config.to_dict()
    optim = {k: v for k, v in content["optim"].items() if k not in ("lr", "warmup")}
    train = {k: v for k, v in content["train"].items() if k not in ("seed", "steps", "tokens")}
    model = {k: v for k, v in content["model"].items() if k not in ("name", "size")}
    return repr((model, content["data"], train, optim))


def in_order(units: Sequence[Unit]) -> list[Unit]:
    """One unit of every program first, the longest before the others, then the second of each:
    workers seldom meet at one program, and no long unit is left for the end."""
    seen: dict[str, int] = {}
    rounds = []
    for unit in units:
        rounds.append(seen.get(unit.program, 0))
        seen[unit.program] = rounds[-1] + 1
    numbered = sorted(range(len(units)), key=lambda i: (rounds[i], -units[i].work, i))
    return [units[i] for i in numbered]


class AbstractSource(abc.ABC):
    """Units that are decided on while others run, such as the trials of a search."""

    @property
    @abc.abstractmethod
    def left(self) -> int:
        """Units that may still come."""

    @abc.abstractmethod
    def more(self, running: Sequence[Unit]) -> Sequence[Unit]:
        """Units for a worker that is free; none if it is to wait for those that run."""

    @abc.abstractmethod
    def watch(self, running: Sequence[Unit]) -> None:
        """Look at those that run, and ask some to stop (`rundir.ask_to_stop`)."""


class Queue:
    """Units that wait, those that a source will give, and how often each was begun."""

    def __init__(self, units: Sequence[Unit], source: AbstractSource | None = None) -> None:
        self.waiting = in_order([unit for unit in units if not unit.done])
        self.bytes = max((unit.bytes for unit in units), default=0)
        self._source = source
        self._begun: dict[Path, int] = {}
        self._compiled: set[str] = set()

    @property
    def left(self) -> int:
        """Units that wait, or may still come."""
        return len(self.waiting) + (self._source.left if self._source else 0)

    def watch(self, running: Sequence[Unit]) -> None:
        if self._source:
            self._source.watch(running)

    def take(self, running: Sequence[Unit]) -> Unit | None:
        """The next unit that no running one is compiling for; None if all wait for that."""
        if not self.waiting and self._source:
            self.waiting = list(self._source.more(running))
        self._compiled |= {unit.program for unit in running if unit.progress()[0]}
        compiling = {unit.program for unit in running} - self._compiled
        for unit in self.waiting:
            if unit.program not in compiling:
                self.waiting.remove(unit)
                self._begun[unit.file] = self._begun.get(unit.file, 0) + 1
                return unit
        return None

    def put_back(self, unit: Unit) -> bool:
        """After its process died: whether it may be tried again."""
        if self._begun[unit.file] >= ATTEMPTS:
            return False
        self.waiting.insert(0, unit)
        return True


def give_up(unit: Unit, reason: str) -> None:
    """Write down that a unit failed, in the file that says it is done."""
    from qkvflow.digests import write_sealed
    from qkvflow.runs.record import failed_record

    if unit.job["kind"] == "run":
        content = failed_record(make_config(read_run_config(unit.file.parent)), reason)
    else:
        labels = unit.job["configs"]
        content = {"rounds": 0, "models": {}, "failed": dict.fromkeys(labels, reason)}
    with writing(unit.file.parent):
        write_sealed(unit.file, content)
