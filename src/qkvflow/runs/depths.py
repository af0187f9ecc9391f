"""Depths in a configuration: which grids a step may draw, and at which depths to evaluate."""

import dataclasses
import math
import re
from typing import Any

from qkvflow.errors import UserError
from qkvflow.zoo import ModelConfig

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
    """`none`, or multiples of the number of steps and `adaptive`, such as `0.5,2,adaptive`."""
    if text == "none":
        return ()
    depths = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for depth in depths:
        try:
            good = depth == "adaptive" or 0 < float(depth) < float("inf")
        except ValueError:
            good = False
        if not good:
            raise UserError(
                f"a depth is a multiple of N such as 0.5 or 2, or adaptive, not '{depth}'"
            )
    return depths


SIGMA = 0.5
"""Of the logarithm of the mean, for log-normal Poisson numbers of loops (Geiping et al. 2025)."""


@dataclasses.dataclass(frozen=True)
class Recurrence:
    """How many steps of the core a training step takes."""

    kind: str = "fixed"
    """fixed, range or lognormal-poisson."""
    least: int = 0
    most: int = 0

    def mean_steps(self, num_steps: int, at_least: int) -> float:
        """E[max(r, at_least)], by quadrature."""
        if self.kind == "fixed":
            return float(max(num_steps, at_least))
        if self.kind == "range":
            numbers = range(self.least, self.most + 1)
            return sum(max(r, at_least) for r in numbers) / len(numbers)
        import numpy as np  # Configurations are read without it, for --help.

        nodes, weights = np.polynomial.hermite_e.hermegauss(64)
        rates = np.exp(np.log(num_steps) - SIGMA**2 / 2 + SIGMA * nodes)
        # E[max(r, k)] = E[r] + sum of P(r <= j) over j < k, where r - 1 is Poisson.
        mean, log_rates = 1.0 + rates, np.log(rates)
        logs = [r * log_rates - rates - math.lgamma(r + 1) for r in range(at_least)]
        below = np.cumsum(np.exp(np.array(logs).reshape(at_least, -1)), axis=0)
        extra = below[: max(at_least - 1, 0)].sum(axis=0)
        return float(weights @ (mean + extra) / weights.sum())


def parse_recurrence(text: str) -> Recurrence:
    """`fixed`, `4-32` or `lognormal-poisson`."""
    if text in ("fixed", "lognormal-poisson"):
        return Recurrence(text)
    span = re.fullmatch(r"(\d{1,6})-(\d{1,6})", text)
    if span is None or not 0 < int(span[1]) <= int(span[2]):
        raise UserError(
            f"train.recurrence must be fixed, a range of loops such as 4-32, or "
            f"lognormal-poisson, not '{text}'"
        )
    return Recurrence("range", int(span[1]), int(span[2]))


def check_depths(train: Any, model: ModelConfig) -> None:
    """Refuse what does not go together in how a configuration trains along depth."""
    drawn = train.depth_jitter != "none" or bool(train.consistency)
    adaptive = model.scheme == "adaptive"
    if adaptive and drawn:
        raise UserError(
            "train.depth_jitter and train.consistency need a fixed scheme: an adaptive one finds "
            "its own steps; choose another --model.scheme"
        )
    if model.exit_gate and (train.consistency or train.backprop_steps is not None):
        raise UserError(
            "a model with exit_gate is trained on all of its steps; leave train.consistency and "
            "train.backprop_steps out, or give model.exit_gate false"
        )
    if train.shortcut:
        _check_shortcut(train, model)
    _check_recurrence(
        train.recurrence,
        train.backprop_steps,
        num_steps=model.num_steps,
        otherwise_drawn=drawn,
        adaptive=adaptive,
    )


def _check_shortcut(train: Any, model: ModelConfig) -> None:
    jitter = parse_jitter(train.depth_jitter)
    if jitter.offset or not jitter.numbers or max(jitter.numbers) >= model.num_steps:
        raise UserError(
            f"train.shortcut needs numbers of steps below the model's {model.num_steps} in "
            f"train.depth_jitter, such as 1-{max(1, model.num_steps - 1)}, not '{train.depth_jitter}'"
        )
    if train.consistency or model.exit_gate:
        raise UserError("train.shortcut goes with neither train.consistency nor model.exit_gate")


def _check_recurrence(
    recurrence: str,
    backprop_steps: int | None,
    *,
    num_steps: int,
    otherwise_drawn: bool,
    adaptive: bool,
) -> None:
    if backprop_steps is None:
        if recurrence != "fixed":
            raise UserError(
                f"train.recurrence {recurrence} needs train.backprop_steps: a loop of any length "
                "has no gradient; give it, such as 4, or use train.depth_jitter"
            )
        return
    if adaptive:
        raise UserError("train.backprop_steps needs a fixed scheme; choose another --model.scheme")
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
