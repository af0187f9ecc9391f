"""What a person sees: a bar on a terminal, plain lines in a pipe."""

import io

import numpy as np

from qkvflow.evaluation.losses import Evaluation
from qkvflow.training.reporter import BarReporter, LineReporter, Reporter, duration, printable

EVALUATION = Evaluation(1.5, 0.01, 2.1, 100, 16, np.zeros(16))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def play(reporter: Reporter) -> None:
    reporter.start(first_step=0, steps=10, lines=["standard: 5 parameters [bold]"])
    reporter.progress(5, loss=2.25, tokens_per_second=1234.0, left=75.0)
    reporter.train({"step": 5, "loss": None, "lr": 0.1, "grad_norm": 1.0})
    reporter.validation(5, EVALUATION)
    reporter.sample(5, "To be\x1b[2J or [red]not[/red]")
    reporter.progress(10, loss=2.0, tokens_per_second=1234.0, left=0.0)
    reporter.stop()


def test_plain_lines():
    file = io.StringIO()
    play(LineReporter(file))
    lines = file.getvalue().splitlines()
    assert lines[0] == "standard: 5 parameters [bold]"
    assert lines[1] == "step 5: loss not finite, lr 0.1, grad norm 1, 1,234 tokens/s"
    assert lines[-1].startswith("step 5: sample")
    assert lines[2].startswith("step 5: validation loss 1.5000 ± 0.0100 nats/token")
    assert "\x1b" not in file.getvalue()


def test_a_bar_on_a_terminal():
    file = Terminal()
    play(BarReporter(file))
    seen = file.getvalue()
    for part in ("step 10/10", "val 1.5000", "1,234 tokens/s", "0:00 left", "[red]not[/red]"):
        assert part in seen
    # A sample cannot command the terminal.
    assert "\x1b[2J" not in seen


def test_the_bar_says_compiling_and_ends_with_the_last_validation_loss():
    file = Terminal()
    reporter = BarReporter(file)
    reporter.start(first_step=0, steps=10, lines=[])
    reporter.compiling()
    assert "compiling" in file.getvalue()
    reporter.progress(10, loss=2.0, tokens_per_second=1234.0, left=0.0)
    reporter.validation(10, EVALUATION)
    reporter.stop()
    assert "val 1.5000" in file.getvalue()


def test_small_things():
    assert duration(75.0) == "1:15"
    assert duration(3675.0) == "1:01:15"
    assert printable("a\tb\nc\x07") == "a\tb\nc\ufffd"
