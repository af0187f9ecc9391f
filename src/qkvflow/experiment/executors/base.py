"""What an executor is: it performs units until all are done, and survives the death of workers."""

import abc
import dataclasses
from pathlib import Path

from qkvflow.errors import ResourceError, UserError
from qkvflow.experiment.display import Display, Row
from qkvflow.experiment.units import Queue, Unit, give_up


class Stopped(Exception):
    """A signal asked to stop; everything is saved."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"signal {signum}")
        self.signum = signum


@dataclasses.dataclass(frozen=True)
class ExecutorOptions:
    """What the executors are told."""

    workers: int | None = None
    """Worker processes; none: as many as the machine suggests."""
    address: str | None = None
    """Of an existing Ray cluster."""
    cpus_per_run: float = 1.0
    gpus_per_run: float = 0.0

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise UserError(f"--workers must be at least 1, not {self.workers}")
        if not self.cpus_per_run > 0 or self.gpus_per_run < 0:
            raise UserError("--cpus-per-run must be positive and --gpus-per-run not negative")


class AbstractExecutor(abc.ABC):
    """Performs units of work until all are done."""

    @abc.abstractmethod
    def run(self, queue: Queue, *, logs: Path, display: Display, caught: list[int]) -> None:
        """Until every unit is done, was asked to stop, or has failed with its reason in its file.

        What workers print goes to files in `logs`. A signal in `caught` ends in `Stopped`, with all
        runs saved; a full disk in the `ResourceError` that a worker met.
        """


@dataclasses.dataclass
class Board:
    """What is being done by whom: what executors share, whoever their workers are."""

    queue: Queue
    display: Display
    running: dict[str, Unit] = dataclasses.field(default_factory=dict)
    """By the name of the worker."""
    blocked: str | None = None
    """What a worker found in the way."""

    def take(self) -> Unit | None:
        return self.queue.take(list(self.running.values()))

    def answer(self, worker: str, answer: dict[str, object]) -> None:
        """A worker says how its unit ended."""
        unit = self.running.pop(worker)
        if "failed" in answer:
            self.fail(unit, str(answer["failed"]))
        elif "blocked" in answer:
            self.blocked = str(answer["blocked"])
        elif "done" in answer:
            self.display.finished(unit)

    def died(self, worker: str, how: str) -> None:
        """A worker's process is gone, and with it what its run did since its last checkpoint."""
        unit = self.running.pop(worker)
        if unit.done:
            self.display.finished(unit)
        elif self.queue.put_back(unit):
            self.display.note(f"{unit.title}: its process {how}; it goes on from its checkpoint")
        else:
            self.fail(unit, f"its process {how}, three times")

    def fail(self, unit: Unit, reason: str) -> None:
        give_up(unit, reason)
        self.display.note(f"{unit.title} FAILED: {reason}")

    def show(self) -> None:
        self.queue.watch(list(self.running.values()))
        rows = []
        for worker, unit in self.running.items():
            step, loss = unit.progress()
            rows.append(Row(worker, unit.title, step, unit.steps, loss, unit.work))
        self.display.update(rows)

    def raise_if_blocked(self) -> None:
        if self.blocked is not None:
            raise ResourceError(self.blocked)
