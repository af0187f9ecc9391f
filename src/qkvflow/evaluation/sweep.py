"""Depth as a dial: what a trained model loses and costs on other grids and with other schemes.

A setting is a scheme with a number of steps, or a solver with a tolerance. The flow is
the trained one in all of them (the horizon stays), so the finest settings show where it leads,
and the others what a coarser way through it costs in quality and saves in work.
"""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

import equinox as eqx

from qkvflow.data import TokenArray
from qkvflow.errors import UserError
from qkvflow.evaluation.losses import Evaluator, evaluate, evaluation_batch
from qkvflow.injections import NoInjection
from qkvflow.lm import LanguageModel, count_flops
from qkvflow.lm.accounting import count_evaluations
from qkvflow.schemes import (
    AbstractScheme,
    AbstractSolver,
    AbstractStepScheme,
    check_injected,
    make_scheme,
)
from qkvflow.zoo import SCHEMES, ModelConfig


@dataclasses.dataclass(frozen=True)
class Setting:
    """One position of the dial."""

    scheme: str
    num_steps: int | None
    """None for a solver."""
    tolerance: float | None = None
    """Of a solver."""


@dataclasses.dataclass(frozen=True)
class Point:
    """What a setting was found to give."""

    scheme: str
    num_steps: int | None
    tolerance: float | None
    trained: bool
    """Whether the model was trained like this."""
    nats: float
    standard_error: float
    bits_per_byte: float
    perplexity: float
    tokens: int
    """Tokens predicted."""
    evaluations: float
    """Of a whole block along depth; the mean over batches where a solver decides."""
    flops_per_token: int
    """Forward, counted analytically."""
    flops_per_pass: int
    """Making the weights along depth, once for a batch."""
    ms_per_token: float
    """Forward in the batches of an evaluation, on this machine, without compilation."""
    reached: bool
    """Whether the solver met its tolerance within the steps it may take, in every batch."""
    missed: int = 0
    """Batches in which it did not."""


def settings_of(
    model: LanguageModel,
    own_scheme: str,
    *,
    composition: str,
    num_steps: Sequence[int],
    schemes: Sequence[str],
    tolerances: Sequence[float] = (),
    own_tolerance: float = 1e-3,
) -> list[Setting]:
    """Every scheme at every number of steps, every tolerance, and the model as it was trained,
    with `own_tolerance` if that is by a solver."""
    if not all(isinstance(make_scheme(scheme), AbstractStepScheme) for scheme in schemes):
        raise UserError("--schemes are fixed schemes; give tolerances with --adaptive 1e-2,1e-3")
    found = [Setting(scheme, steps) for scheme in schemes for steps in num_steps]
    own = isinstance(model.scheme, AbstractSolver)
    # A solver of the model's own has tolerances too.
    found += [Setting(own_scheme if own else "adaptive", None, each) for each in tolerances]
    if not any(_is_trained(model, x, composition) for x in found):
        solved = Setting(own_scheme, None, own_tolerance)
        found.insert(0, solved if own else Setting(own_scheme, model.num_steps))
    for each in found:
        check_injected(
            each.scheme, _scheme(each, composition), not isinstance(model.injection, NoInjection)
        )
    return list(dict.fromkeys(found))


def sweep_depth(
    model: LanguageModel,
    split: TokenArray,
    settings: Sequence[Setting],
    *,
    composition: str,
    max_tokens: int | None = None,
) -> Iterator[Point]:
    """The points of `settings`, one after another as they are measured."""
    for setting in settings:
        yield _measure(model, split, setting, composition, max_tokens)


def _is_trained(model: LanguageModel, setting: Setting, composition: str) -> bool:
    """Euler's step is the residual step: the horizon tells them apart, and it stays."""
    if setting.tolerance is None and setting.num_steps != model.num_steps:
        return False
    return _scheme(setting, composition) == model.scheme


def _scheme(setting: Setting, composition: str) -> AbstractScheme:
    tolerance = 1e-3 if setting.tolerance is None else setting.tolerance
    return make_scheme(setting.scheme, composition=composition, tolerance=tolerance)


def _measure(
    model: LanguageModel,
    split: TokenArray,
    setting: Setting,
    composition: str,
    max_tokens: int | None,
) -> Point:
    changed = model.at_depth(setting.num_steps, _scheme(setting, composition))
    params, static = eqx.partition(changed, eqx.is_inexact_array)
    batch_size = evaluation_batch(model.context, model.vocab_size)
    evaluator = Evaluator(
        static, split, context=model.context, batch_size=batch_size, max_tokens=max_tokens
    )
    evaluator.compile(params)
    begin = time.perf_counter()
    evaluation = evaluator(params)
    seconds = time.perf_counter() - begin
    work = evaluation.solved
    flops = count_flops(changed, evaluations=None if work is None else work.evaluations)
    return Point(
        scheme=setting.scheme,
        num_steps=setting.num_steps,
        tolerance=setting.tolerance,
        trained=_is_trained(model, setting, composition),
        nats=evaluation.nats,
        standard_error=evaluation.standard_error,
        bits_per_byte=evaluation.bits_per_byte,
        perplexity=evaluation.perplexity,
        tokens=evaluation.tokens,
        evaluations=float(count_evaluations(changed)) if work is None else work.evaluations,
        flops_per_token=flops.forward,
        flops_per_pass=flops.generation,
        ms_per_token=1000.0 * seconds / evaluator.tokens_run,
        reached=work is None or not work.missed,
        missed=0 if work is None else work.missed,
    )


DEPTH_TOKENS = 65536
"""Validation tokens of each evaluation at another depth, in windows spread evenly. The test split
is kept for the one evaluation that a run is judged by."""


def evaluate_depths(
    model: LanguageModel, config: ModelConfig, split: TokenArray, depths: Sequence[str]
) -> list[dict[str, Any]]:
    """`{num_steps, scheme, nats, split}` of a trained model at N and at every depth: a multiple of
    N, or a scheme.

    A solver that gives up leaves a state on the way; the loss of that is nobody's: `nats` is None
    where there was such a batch, and `solver` says how many there were.
    """
    found = []
    for depth in dict.fromkeys(["1", *depths]):
        steps, name, scheme = config.num_steps, config.scheme, None
        if depth in SCHEMES:
            name = depth
            options = {"composition": config.composition, "tolerance": config.tolerance}
            scheme = make_scheme(depth, **options)
        else:
            steps = max(1, round(float(depth) * config.num_steps))
        changed = model.at_depth(steps, scheme)
        evaluation = evaluate(changed, split, max_tokens=DEPTH_TOKENS)
        work = evaluation.solved
        found.append(
            {
                "num_steps": steps if work is None else None,
                "scheme": name,
                "nats": evaluation.nats if work is None or not work.missed else None,
                "split": "validation",
                **({} if work is None else {"solver": work._asdict()}),
            }
        )
    return found
