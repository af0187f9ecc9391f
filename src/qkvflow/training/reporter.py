"""What a run tells the person watching it: a bar on a terminal, plain lines in a pipe."""

import abc
import math
import sys
from typing import Any

from qkvflow.evaluation import Evaluation

COMPILING = "compiling (the first time takes a while; then it is in the cache)"


class Reporter(abc.ABC):
    """Told by the loop what happens."""

    @abc.abstractmethod
    def start(self, *, first_step: int, steps: int, lines: list[str]) -> None:
        """Training begins, or goes on from `first_step`."""

    @abc.abstractmethod
    def compiling(self) -> None:
        """The program is being compiled, before the first step."""

    @abc.abstractmethod
    def progress(self, step: int, *, loss: float, tokens_per_second: float, left: float) -> None:
        """After every program call; `left` is the estimate of seconds to go."""

    @abc.abstractmethod
    def train(self, line: dict[str, Any]) -> None:
        """A line of training loss."""

    @abc.abstractmethod
    def validation(self, step: int, evaluation: Evaluation) -> None:
        """An evaluation."""

    @abc.abstractmethod
    def sample(self, step: int, text: str) -> None:
        """Generated text."""

    @abc.abstractmethod
    def note(self, text: str) -> None:
        """Something worth knowing."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Training is over, one way or the other."""


class SilentReporter(Reporter):
    """Says nothing."""

    def start(self, *, first_step: int, steps: int, lines: list[str]) -> None:
        pass

    def compiling(self) -> None:
        pass

    def progress(self, step: int, *, loss: float, tokens_per_second: float, left: float) -> None:
        pass

    def train(self, line: dict[str, Any]) -> None:
        pass

    def validation(self, step: int, evaluation: Evaluation) -> None:
        pass

    def sample(self, step: int, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def stop(self) -> None:
        pass


class LineReporter(Reporter):
    """One line per event, for pipes and logs."""

    def __init__(self, file: Any = None) -> None:
        self._file = sys.stdout if file is None else file
        self._speed = 0.0

    def start(self, *, first_step: int, steps: int, lines: list[str]) -> None:
        for line in lines:
            self.note(line)

    def compiling(self) -> None:
        self.note(COMPILING)

    def progress(self, step: int, *, loss: float, tokens_per_second: float, left: float) -> None:
        self._speed = tokens_per_second

    def train(self, line: dict[str, Any]) -> None:
        loss = "not finite" if line["loss"] is None else f"{line['loss']:.4f}"
        self.note(
            f"step {line['step']}: loss {loss}, lr {line['lr']:.3g}, "
            f"grad norm {line['grad_norm']:.3g}, {self._speed:,.0f} tokens/s"
        )

    def validation(self, step: int, evaluation: Evaluation) -> None:
        self.note(describe(step, evaluation))

    def sample(self, step: int, text: str) -> None:
        self.note(f"step {step}: sample {text[:80]!r}")

    def note(self, text: str) -> None:
        print(text, file=self._file, flush=True)

    def stop(self) -> None:
        pass


class BarReporter(Reporter):
    """A progress bar with losses, speed and time left; evaluations and samples above it."""

    def __init__(self, file: Any = None) -> None:
        from rich.console import Console

        self._console = Console(file=file, highlight=False)
        self._bar: Any = None
        self._task: Any = None
        self._validation = "-"

    def start(self, *, first_step: int, steps: int, lines: list[str]) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        for line in lines:
            self.note(line)
        self._bar = Progress(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("loss {task.fields[loss]}  val {task.fields[validation]}"),
            TextColumn("{task.fields[status]}"),
            console=self._console,
        )
        self._bar.start()
        self._task = self._bar.add_task(
            "", total=steps, completed=first_step, loss="-", validation="-", status=""
        )

    def compiling(self) -> None:
        self.note(COMPILING)
        self._bar.update(self._task, status="compiling", refresh=True)

    def progress(self, step: int, *, loss: float, tokens_per_second: float, left: float) -> None:
        self._bar.update(
            self._task,
            completed=step,
            loss=f"{loss:.4f}",
            validation=self._validation,
            status=f"{tokens_per_second:,.0f} tokens/s  {duration(left)} left",
        )

    def train(self, line: dict[str, Any]) -> None:
        pass

    def validation(self, step: int, evaluation: Evaluation) -> None:
        self._validation = f"{evaluation.nats:.4f}"
        self._bar.update(self._task, validation=self._validation, refresh=True)
        self.note(describe(step, evaluation))

    def sample(self, step: int, text: str) -> None:
        from rich.padding import Padding
        from rich.text import Text

        self._console.print(Padding(Text(printable(text.strip()), style="dim"), (0, 4)))

    def note(self, text: str) -> None:
        self._console.print(text, markup=False)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def describe(step: int, evaluation: Evaluation) -> str:
    error = evaluation.standard_error
    after = f" ± {error:.4f}" if math.isfinite(error) else ""
    return (
        f"step {step}: validation loss {evaluation.nats:.4f}{after} "
        f"nats/token, {evaluation.bits_per_byte:.4f} bits/byte"
    )


def duration(seconds: float) -> str:
    """75 as 1:15."""
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def printable(text: str) -> str:
    """Generated text without control characters: a sample must not command the terminal."""
    return "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text)
