"""Depths in a configuration: which grids a step may draw, and at which depths to evaluate."""

import dataclasses
import re
from typing import Any

from qkvflow.errors import UserError
from qkvflow.zoo import ModelConfig
from qkvflow.zoo.registry import SCHEMES

MOST_NUMBERS = 8
"""Of steps to draw from: each is a branch to compile."""


@dataclasses.dataclass(frozen=True)
class Jitter:
    """What is drawn for a training step."""

    offset: bool = False
    numbers: tuple[int, ...] = ()
    """Of depth steps; none: the model's own."""


def parse_jitter(text: str) -> Jitter:
    """`none`, `offset`, `4-8`, `3,6,12`, `offset+4-8`."""
    offset = False
    numbers: tuple[int, ...] = ()
    parts = [] if text == "none" else text.split("+")
    for part in parts:
        part = part.strip()
        if part == "offset":
            offset = True
        elif span := re.fullmatch(r"(\d{1,6})-(\d{1,6})", part):
            numbers = tuple(range(int(span[1]), int(span[2]) + 1))
        elif re.fullmatch(r"\d{1,6}(,\d{1,6})*", part):
            numbers = tuple(dict.fromkeys(int(each) for each in part.split(",")))
        else:
            raise _wrong(text)
        if part != "offset" and (not numbers or 0 in numbers):
            raise _wrong(text)
    if len(numbers) > MOST_NUMBERS:
        raise UserError(
            f"train.depth_jitter '{text}' draws from {len(numbers)} numbers of steps, and each is "
            f"compiled; give at most {MOST_NUMBERS}, such as {min(numbers)},{max(numbers)}"
        )
    return Jitter(offset, numbers)


def _wrong(text: str) -> UserError:
    return UserError(
        f"train.depth_jitter must be none, offset, numbers of steps such as 4-8 or 3,6,12, or "
        f"offset+4-8, not '{text}'"
    )


def parse_depths(text: str) -> tuple[str, ...]:
    """`none`, or multiples of the number of steps and names of schemes, as `0.5,2,adaptive`."""
    if text == "none":
        return ()
    depths = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for depth in depths:
        try:
            good = depth in SCHEMES or 0 < float(depth) < float("inf")
        except ValueError:
            good = False
        if not good:
            raise UserError(
                f"a depth is a multiple of N such as 0.5 or 2, or a scheme such as adaptive, not "
                f"'{depth}'"
            )
    return depths


def parse_levels(text: str) -> tuple[int, ...]:
    """`none`, or difficulties of a probe such as `1,2,8`."""
    if text == "none":
        return ()
    if not re.fullmatch(r"\d{1,6}(,\d{1,6})*", text) or "0" in text.split(","):
        raise UserError(f"difficulties are whole numbers such as 1,2,8, not '{text}'")
    return tuple(dict.fromkeys(map(int, text.split(","))))


_MOST_SHARES = 1024
SIGMA = 0.5
"""Of the logarithm of the mean, for log-normal Poisson numbers of loops (Geiping et al. 2025)."""


@dataclasses.dataclass(frozen=True)
class Recurrence:
    """How many steps of the core a training step takes."""

    kind: str = "fixed"
    """fixed, range or lognormal-poisson."""
    least: int = 0
    most: int = 0
    ramp: float = 0.0
    """Share of the run in which the number grows from one step to all of what is drawn."""

    def share(self, done: Any) -> Any:
        """Of the number drawn, what is taken when `done` of the run is."""
        return done / self.ramp if self.ramp else 1.0

    def chances(self, num_steps: int) -> "tuple[Any, Any]":
        """Numbers that may be drawn, and the probability of each (by quadrature)."""
        import numpy as np  # Configurations are read without it, for --help.

        if self.kind != "lognormal-poisson":
            least, most = (self.least, self.most) if self.most else (num_steps, num_steps)
            numbers = np.arange(least, most + 1)
            return numbers, np.full(len(numbers), 1.0 / len(numbers))
        nodes, weights = np.polynomial.hermite_e.hermegauss(64)
        rates = np.exp(np.log(num_steps) - SIGMA**2 / 2 + SIGMA * nodes)
        # r - 1 is Poisson. What is left out beyond 40 times the mean is less than 1e-12.
        counts = np.arange(40 * num_steps + 60)
        factorials = np.cumsum(np.log(np.maximum(counts, 1)))
        logs = counts[:, None] * np.log(rates)[None] - rates[None] - factorials[:, None]
        return counts + 1, np.exp(logs) @ weights / weights.sum()

    def mean_steps(self, num_steps: int, at_least: int, run: int = 1) -> float:
        """E[max(r, at_least)], on average over the steps of a run of that many."""
        import numpy as np

        numbers, chances = self.chances(num_steps)
        # A long ramp is averaged over steps of it that are evenly spread.
        done = (np.arange(min(run, _MOST_SHARES)) + 1.0) / min(run, _MOST_SHARES)
        shares = np.minimum(np.broadcast_to(self.share(done), done.shape), 1.0)
        shares, counts = np.unique(shares, return_counts=True)
        taken = np.maximum(np.ceil(shares[:, None] * numbers[None] - 1e-3), at_least)
        return float(counts @ (taken @ chances) / counts.sum())


def parse_recurrence(text: str) -> Recurrence:
    """`fixed`, `4-32` or `lognormal-poisson`, each also with a ramp: `fixed+ramp:0.5`."""
    kind, _, ramp = text.partition("+")
    number = re.fullmatch(r"ramp:(\d*\.?\d+)", ramp)
    share = float(number[1]) if number else 0.0
    span = re.fullmatch(r"(\d{1,6})-(\d{1,6})", kind)
    known = kind in ("fixed", "lognormal-poisson") or (
        span is not None and 0 < int(span[1]) <= int(span[2])
    )
    if not known or ("+" in text and not 0.0 < share <= 1.0):
        raise UserError(
            f"train.recurrence must be fixed, a range of loops such as 4-32, or lognormal-poisson, "
            f"each with +ramp:0.5 if they are to grow over that share of the run, not '{text}'"
        )
    if span is None:
        return Recurrence(kind, ramp=share)
    return Recurrence("range", int(span[1]), int(span[2]), share)


def _is_solver(scheme: str) -> bool:
    """Asked only where it matters: schemes bring JAX with them."""
    from qkvflow.schemes import AbstractSolver, make_scheme

    return isinstance(make_scheme(scheme), AbstractSolver)


def check_depths(train: Any, model: ModelConfig) -> None:
    """Refuse what does not go together in how a configuration trains along depth."""
    drawn = train.depth_jitter != "none" or bool(train.consistency)
    asked = drawn or train.backprop_steps is not None or model.exit_gate
    if asked and _is_solver(model.scheme):
        raise UserError(
            "train.depth_jitter, consistency and backprop_steps, and exit_gate, need a fixed "
            f"scheme: {model.scheme} finds its own steps; choose another --model.scheme"
        )
    if model.exit_gate and (train.consistency or train.backprop_steps is not None):
        raise UserError(
            "a model with exit_gate is trained on all of its steps; leave train.consistency and "
            "train.backprop_steps out, or give model.exit_gate false"
        )
    if model.value_residual and train.backprop_steps is not None:
        raise UserError("train.backprop_steps does not go with model.value_residual; leave one out")
    if train.shortcut:
        _check_shortcut(train, model)
    _check_recurrence(
        train.recurrence,
        train.backprop_steps,
        num_steps=model.num_steps,
        otherwise_drawn=drawn,
    )


def _check_shortcut(train: Any, model: ModelConfig) -> None:
    jitter = parse_jitter(train.depth_jitter)
    if jitter.offset or not jitter.numbers or max(jitter.numbers) >= model.num_steps:
        raise UserError(
            f"train.shortcut needs numbers of steps below the model's {model.num_steps} in "
            f"train.depth_jitter, such as 1-{max(1, model.num_steps - 1)}, "
            f"not '{train.depth_jitter}'"
        )
    if train.consistency or model.exit_gate:
        raise UserError("train.shortcut goes with neither train.consistency nor model.exit_gate")


def _check_recurrence(
    recurrence: str,
    backprop_steps: int | None,
    *,
    num_steps: int,
    otherwise_drawn: bool,
) -> None:
    if backprop_steps is None:
        if recurrence != "fixed":
            raise UserError(
                f"train.recurrence {recurrence} needs train.backprop_steps: a loop of any length "
                "has no gradient; give it, such as 4, or use train.depth_jitter"
            )
        return
    if otherwise_drawn:
        raise UserError(
            "train.backprop_steps does not go with train.depth_jitter and train.consistency; "
            "draw the number of loops with train.recurrence"
        )
    most = parse_recurrence(recurrence).most or num_steps
    if backprop_steps > most:
        raise UserError(
            f"train.backprop_steps {backprop_steps} is more than the {most} steps there are; "
            "give fewer"
        )
