"""What a comparison tells the person watching: one bar over the whole plan, or plain lines."""

import abc
import sys
import time
from typing import Any, TextIO

from qkvflow.training.reporter import duration

_SECONDS_BETWEEN_LINES = 10.0


class Watch(abc.ABC):
    """Told by the runner what happens. Work is counted in any unit that all models share."""

    @abc.abstractmethod
    def start(self, total: float, done: float) -> None:
        """Training begins with `done` of `total` work behind it."""

    @abc.abstractmethod
    def advance(self, work: float, text: str) -> None:
        """So much more is done; `text` says where we are."""

    @abc.abstractmethod
    def note(self, text: str) -> None:
        """Something worth a line."""

    @abc.abstractmethod
    def busy(self, text: str) -> None:
        """What is being done now, apart from training."""

    @abc.abstractmethod
    def stop(self) -> None:
        """It is over, one way or the other."""


class Silent(Watch):
    """Says nothing."""

    def start(self, total: float, done: float) -> None:
        pass

    def advance(self, work: float, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def busy(self, text: str) -> None:
        pass

    def stop(self) -> None:
        pass


class Clock:
    """Time left, from the work done since this process started on it."""

    def __init__(self, total: float, done: float) -> None:
        self.total, self.done, self._at_start = total, done, done
        self._begin = time.perf_counter()

    def left(self) -> str:
        made = self.done - self._at_start
        if made <= 0:
            return "-"
        spent = time.perf_counter() - self._begin
        return duration(spent / made * max(self.total - self.done, 0.0))

    @property
    def share(self) -> float:
        return min(1.0, self.done / self.total) if self.total else 1.0


class Plain(Watch):
    """Lines for pipes and logs, a few a minute."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = sys.stdout if file is None else file
        self._clock = Clock(0.0, 0.0)
        self._last = 0.0

    def start(self, total: float, done: float) -> None:
        self._clock = Clock(total, done)

    def advance(self, work: float, text: str) -> None:
        self._clock.done += work
        now = time.perf_counter()
        if now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            self.note(f"[{self._clock.share:4.0%}] {text}; {self._clock.left()} left")

    def note(self, text: str) -> None:
        print(text, file=self._file, flush=True)

    def busy(self, text: str) -> None:
        now = time.perf_counter()
        if now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            self.note(text)

    def stop(self) -> None:
        pass


class Rich(Watch):
    """A bar with time left; finished runs above it."""

    def __init__(self, file: TextIO | None = None) -> None:
        from rich.console import Console

        self._console = Console(file=file, highlight=False)
        self._clock = Clock(0.0, 0.0)
        self._bar: Any = None
        self._task: Any = None

    def start(self, total: float, done: float) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self.stop()
        self._clock = Clock(total, done)
        self._bar = Progress(
            TextColumn("{task.percentage:3.0f} %"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[text]}"),
            TextColumn("{task.fields[left]} left"),
            console=self._console,
        )
        self._bar.start()
        self._task = self._bar.add_task("", total=1.0, completed=0.0, text="", left="-")

    def advance(self, work: float, text: str) -> None:
        self._clock.done += work
        self._update(text)

    def _update(self, text: str) -> None:
        if self._bar is not None:
            share, left = self._clock.share, self._clock.left()
            self._bar.update(self._task, completed=share, text=text, left=left)

    def note(self, text: str) -> None:
        self._console.print(text, markup=False)

    def busy(self, text: str) -> None:
        if self._bar is not None:
            self._update(text)
        else:
            self._console.print(text, markup=False, style="dim")

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
