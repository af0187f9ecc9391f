"""Depth as a dial: what a trained model loses and costs on other grids and with other schemes.

A setting is a scheme with a number of steps, or an adaptive solver with a tolerance. The flow is
the trained one in all of them (the horizon stays), so the finest settings show where it leads,
and the others what a coarser way through it costs in quality and saves in work.
"""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from qkvflow.data import TokenArray
from qkvflow.data.batches import host_windows
from qkvflow.errors import UserError
from qkvflow.evaluation.losses import Evaluator, evaluate, evaluation_batch, evaluation_groups
from qkvflow.lm import LanguageModel, count_flops
from qkvflow.lm.accounting import count_evaluations
from qkvflow.schemes import AbstractStepScheme, make_scheme
from qkvflow.zoo import ModelConfig

_COUNTED_BATCHES = 8
"""Batches in which the evaluations of an adaptive scheme are counted, spread over the split."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """One position of the dial."""

    scheme: str
    num_steps: int | None
    """None for an adaptive scheme."""
    tolerance: float | None = None
    """Of an adaptive scheme."""


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
    """Whether the solver met its tolerance within the steps it may take."""


def settings_of(
    model: LanguageModel,
    own_scheme: str,
    *,
    composition: str,
    num_steps: Sequence[int],
    schemes: Sequence[str],
    tolerances: Sequence[float] = (),
) -> list[Setting]:
    """Every scheme at every number of steps, every tolerance, and the model as it was trained."""
    if not all(isinstance(make_scheme(scheme), AbstractStepScheme) for scheme in schemes):
        raise UserError("--schemes are fixed schemes; give tolerances with --adaptive 1e-2,1e-3")
    found = [Setting(scheme, steps) for scheme in schemes for steps in num_steps]
    found += [Setting("adaptive", None, tolerance) for tolerance in tolerances]
    fixed = isinstance(model.scheme, AbstractStepScheme)
    if fixed and not any(_is_trained(model, x, composition) for x in found):
        found.insert(0, Setting(own_scheme, model.num_steps))
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
    own = setting.num_steps == model.num_steps and setting.tolerance is None
    return own and make_scheme(setting.scheme, composition=composition) == model.scheme


def _measure(
    model: LanguageModel,
    split: TokenArray,
    setting: Setting,
    composition: str,
    max_tokens: int | None,
) -> Point:
    scheme = make_scheme(
        setting.scheme, composition=composition, tolerance=setting.tolerance or 1e-3
    )
    changed = model.at_depth(setting.num_steps, scheme)
    params, static = eqx.partition(changed, eqx.is_inexact_array)
    batch_size = evaluation_batch(model.context, model.vocab_size)
    evaluator = Evaluator(
        static, split, context=model.context, batch_size=batch_size, max_tokens=max_tokens
    )
    evaluator.compile(params)
    begin = time.perf_counter()
    evaluation = evaluator(params)
    seconds = time.perf_counter() - begin
    evaluations, reached = float(count_evaluations(changed)), True
    if setting.tolerance is not None:
        evaluations, reached = count_work(changed, split, batch_size, max_tokens)
    flops = count_flops(changed, evaluations=evaluations if setting.tolerance else None)
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
        evaluations=evaluations,
        flops_per_token=flops.forward,
        flops_per_pass=flops.generation,
        ms_per_token=1000.0 * seconds / evaluator.tokens_run,
        reached=reached,
    )


DEPTH_TOKENS = 65536
"""Validation tokens of each evaluation at another depth, in windows spread evenly. The test split
is kept for the one evaluation that a run is judged by."""


def evaluate_depths(
    model: LanguageModel, config: ModelConfig, split: TokenArray, depths: Sequence[str]
) -> list[dict[str, Any]]:
    """`{num_steps, scheme, nats, split}` of a trained model at N and at every depth: a multiple of
    N, or `adaptive`.

    A solver that runs out of steps leaves a state of some depth before the end; the loss of that
    is nobody's, and `nats` is None.
    """
    found = []
    batch_size = evaluation_batch(model.context, model.vocab_size)
    for depth in dict.fromkeys(["1", *depths]):
        steps, scheme = config.num_steps, None
        if depth == "adaptive":
            scheme = make_scheme("adaptive", tolerance=config.tolerance)
        else:
            steps = max(1, round(float(depth) * config.num_steps))
        changed = model.at_depth(steps, scheme)
        arrives = scheme is None or count_work(changed, split, batch_size, DEPTH_TOKENS)[1]
        found.append(
            {
                "num_steps": None if depth == "adaptive" else steps,
                "scheme": "adaptive" if depth == "adaptive" else config.scheme,
                "nats": evaluate(changed, split, max_tokens=DEPTH_TOKENS).nats if arrives else None,
                "split": "validation",
            }
        )
    return found


def count_work(
    model: LanguageModel,
    split: TokenArray,
    batch_size: int,
    max_tokens: int | None,
    batches: int = _COUNTED_BATCHES,
    context: int | None = None,
) -> tuple[float, bool]:
    """Mean evaluations that the solver makes for a batch, and whether it always arrives.

    Of `batches` batches spread over the text, or fewer if there are fewer.
    """
    context = context or model.context
    groups = evaluation_groups(len(split), context, batch_size, max_tokens)
    starts = groups.starts.reshape(-1, batch_size)[: sum(groups.counts)]
    chosen = starts[np.unique(np.linspace(0, len(starts) - 1, batches).astype(int))]
    found = [_work(model, jnp.asarray(_inputs(split, each, context))) for each in chosen]
    counts, arrived = zip(*jax.device_get(found), strict=True)
    return float(np.mean(counts)), all(arrived)


def _inputs(split: TokenArray, starts: Any, context: int) -> np.ndarray:
    return host_windows(split.tokens, starts, context)[0].astype(np.int32)


@eqx.filter_jit
def _work(
    model: LanguageModel, tokens: Int[Array, "batch seq"]
) -> tuple[Float[Array, ""] | Int[Array, ""], Bool[Array, ""]]:
    solution = model.integrate(tokens)
    return jnp.asarray(solution.num_evaluations), jnp.asarray(solution.succeeded)
