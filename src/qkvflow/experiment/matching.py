"""Widths that give a model the parameters or the compute of another.

The width is searched first, over the multiples the heads allow, at the shape the model has; then
the hidden width of the MLP, or the states of a state space layer where there is no MLP, closes the
gap. Everything is counted on shapes: nothing is allocated.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from qkvflow.errors import UserError
from qkvflow.lm import abstract, count_parameters
from qkvflow.runs.sections import TrainConfig
from qkvflow.training.objective import step_flops
from qkvflow.zoo import ModelConfig

TOLERANCE = 0.02
_WIDEST = 1 << 14
_PLAIN = TrainConfig()
_UNITS = {"params": "block parameters", "flops": "training FLOPs per token"}


def measure(
    config: ModelConfig,
    kind: str,
    *,
    vocab_size: int,
    tokens_per_step: int,
    train: TrainConfig = _PLAIN,
) -> float:
    """Block parameters, or FLOPs per token of a step of that training, with the making of weights
    shared out."""
    model = abstract(config, vocab_size=vocab_size)
    if kind == "params":
        return float(count_parameters(model).blocks)
    return step_flops(train, model, tokens_per_step) / tokens_per_step


def match(
    config: ModelConfig,
    kind: str,
    target: float,
    *,
    vocab_size: int,
    tokens_per_step: int,
    train: TrainConfig = _PLAIN,
    label: str = "the model",
    tolerance: float = TOLERANCE,
) -> ModelConfig:
    """The configuration rescaled to within `tolerance` of the target."""
    counted: dict[ModelConfig, float] = {}

    def count(candidate: ModelConfig) -> float:
        if candidate not in counted:
            counted[candidate] = measure(
                candidate,
                kind,
                vocab_size=vocab_size,
                tokens_per_step=tokens_per_step,
                train=train,
            )
        return counted[candidate]

    if abs(count(config) - target) <= tolerance * target:
        return config
    tried: list[ModelConfig] = []
    for candidate in _widths(config, count, target):
        fine = _fine_tune(candidate, count, target)
        tried += [candidate, fine]
        if abs(count(fine) - target) <= tolerance * target:
            return fine
    nearest = min(tried, key=lambda each: abs(count(each) - target), default=None)
    found = f"the nearest is {count(nearest):,.0f}" if nearest else "no width fits its heads"
    raise UserError(
        f"{label} cannot be matched to {target:,.0f} {_UNITS[kind]} within {tolerance:.0%}: "
        f"{found}; change its num_heads, d_time or num_steps, or leave it out"
    )


def _widths(
    config: ModelConfig, count: Callable[[ModelConfig], float], target: float
) -> Iterator[ModelConfig]:
    """Possible widths, outward from the one whose count is nearest to the target."""
    most = max(1, _WIDEST // config.num_heads)

    def near(index: int) -> ModelConfig | None:
        """Some multiples are no width (rotary positions, heads of the state space): the next is."""
        made = (_with(config, d_model=i * config.num_heads) for i in range(index, index + 8))
        return next((each for each in made if each is not None), None)

    # Counts grow as the width to a power between 1 and 2, so this closes in quickly.
    index, seen = config.d_model // config.num_heads, set()
    while index not in seen:
        seen.add(index)
        if (candidate := near(index)) is None:
            return
        scaled = candidate.d_model * (target / count(candidate)) ** 0.5
        index = max(1, min(most, round(scaled / config.num_heads)))
    offered = set()
    for step in range(5):
        for around in dict.fromkeys((index - step, index + step)):
            candidate = near(around) if 1 <= around <= most else None
            if candidate is not None and candidate.d_model not in offered:
                offered.add(candidate.d_model)
                yield candidate


def _fine_tune(
    config: ModelConfig, count: Callable[[ModelConfig], float], target: float
) -> ModelConfig:
    """The hidden width (or state size) that comes nearest to the target at this d_model."""
    for start, made in (
        (config.d_hidden, lambda size: _with(config, mlp_ratio=size / config.d_model)),
        (config.d_state, lambda size: _with(config, d_state=size)),
    ):
        # The count is linear in either size, up to rounding: two points give the slope.
        here, there = made(start), made(start + 16)
        if here is None or there is None or count(there) == count(here):
            continue  # None of its mixers has such a size.
        slope = (count(there) - count(here)) / 16
        size = round(start + (target - count(here)) / slope)
        # Far from the model's own proportions it would be another architecture.
        tuned = made(size) if start / 4 <= size <= 4 * start else None
        return config if tuned is None else tuned
    return config


def _with(config: ModelConfig, **changes: Any) -> ModelConfig | None:
    try:
        return dataclasses.replace(config, **changes)
    except UserError:
        return None
