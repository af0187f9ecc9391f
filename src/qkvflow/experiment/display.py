"""What an experiment tells the person watching: one bar in all and a line for each worker."""

import abc
import dataclasses
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from qkvflow.experiment.units import Unit
from qkvflow.training.reporter import duration

_SECONDS_BETWEEN_LINES = 10.0


@dataclasses.dataclass(frozen=True)
class Row:
    """What one worker is doing."""

    worker: str
    title: str
    step: int
    steps: int
    loss: float | None
    work: float
    """Of its unit, in FLOPs."""

    @property
    def share(self) -> float:
        return min(1.0, self.step / self.steps) if self.steps else 0.0

    def __str__(self) -> str:
        if not self.steps:
            return self.title
        if not self.step:
            return f"{self.title}: compiling"
        loss = "" if self.loss is None else f", loss {self.loss:.3f}"
        return f"{self.title}: step {self.step}/{self.steps}{loss}"


class Clock:
    """How far all units are, and the time left, from the work done since this process began."""

    def __init__(self) -> None:
        self._total = self._finished = self._here = self._first = 0.0
        self._begin: float | None = None

    def start(self, units: Sequence[Unit]) -> None:
        self._total = sum(unit.work for unit in units)
        self._finished = sum(unit.work for unit in units if unit.done)
        self._here, self._begin = self._finished, None

    def finished(self, unit: Unit) -> None:
        self._finished += unit.work

    def update(self, rows: Sequence[Row]) -> None:
        self._here = self._finished + sum(row.share * row.work for row in rows)
        if self._begin is None and any(row.step for row in rows):
            self._begin, self._first = time.perf_counter(), self._here

    @property
    def share(self) -> float:
        return min(1.0, self._here / self._total) if self._total else 1.0

    def left(self) -> str:
        made = self._here - self._first
        if self._begin is None or made <= 0:
            return "-"
        spent = time.perf_counter() - self._begin
        return duration(spent / made * max(self._total - self._here, 0.0))


class Display(abc.ABC):
    @abc.abstractmethod
    def start(self, what: str, units: Sequence[Unit]) -> None:
        """Units are about to be performed; those that are done count as done."""

    @abc.abstractmethod
    def update(self, rows: Sequence[Row]) -> None:
        """What the workers are doing now."""

    @abc.abstractmethod
    def finished(self, unit: Unit) -> None:
        """A unit is done."""

    @abc.abstractmethod
    def note(self, text: str) -> None:
        """Something worth a line."""

    @abc.abstractmethod
    def stop(self) -> None:
        """It is over, one way or the other."""


class SilentDisplay(Display):
    """Says nothing."""

    def start(self, what: str, units: Sequence[Unit]) -> None:
        pass

    def update(self, rows: Sequence[Row]) -> None:
        pass

    def finished(self, unit: Unit) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def stop(self) -> None:
        pass


class LineDisplay(Display):
    """Lines for pipes and logs, a few a minute."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = sys.stdout if file is None else file
        self._clock, self._what, self._last = Clock(), "", 0.0

    def start(self, what: str, units: Sequence[Unit]) -> None:
        self._what = what
        self._clock.start(units)

    def update(self, rows: Sequence[Row]) -> None:
        self._clock.update(rows)
        now = time.perf_counter()
        if rows and now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            doing = "; ".join(map(str, rows))
            self.note(f"[{self._clock.share:4.0%}] {doing}; {self._clock.left()} left")

    def finished(self, unit: Unit) -> None:
        self._clock.finished(unit)
        self.note(f"{unit.title}: {unit.result()}")

    def note(self, text: str) -> None:
        print(text, file=self._file, flush=True)

    def stop(self) -> None:
        pass


class BarDisplay(Display):
    """A bar for all, with the time left, and a line for each worker below it."""

    def __init__(self, file: TextIO | None = None) -> None:
        from rich.console import Console

        self._console = Console(file=file, highlight=False)
        self._clock, self._what = Clock(), ""
        self._live: Any = None

    def start(self, what: str, units: Sequence[Unit]) -> None:
        from rich.live import Live

        self.stop()
        self._what = what
        self._clock.start(units)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def update(self, rows: Sequence[Row]) -> None:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        self._clock.update(rows)
        if self._live is None:
            return
        head = Table.grid(padding=(0, 1))
        head.add_row(
            Text(self._what),
            ProgressBar(total=1.0, completed=self._clock.share, width=30),
            Text(f"{self._clock.share:4.0%}  {self._clock.left()} left"),
        )
        lines = [Text(f"  {row}", style="dim", no_wrap=True, overflow="ellipsis") for row in rows]
        self._live.update(Group(head, *lines), refresh=True)

    def finished(self, unit: Unit) -> None:
        self._clock.finished(unit)
        self.note(f"{unit.title}: {unit.result()}")

    def note(self, text: str) -> None:
        self._console.print(text, markup=False)

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
