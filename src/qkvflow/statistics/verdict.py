"""Verdicts in words, derived from tests only (`docs/statistics.md` has the precedence)."""

from dataclasses import dataclass
from typing import Any

from qkvflow.statistics.pairing import Pairing


@dataclass(frozen=True)
class Rules:
    """Level of the tests, equivalence margin in nats, power of the detectable difference."""

    alpha: float
    margin: float
    power: float


@dataclass(frozen=True)
class Corrected:
    """The p-values of a pair after Holm's correction over `size` pairs."""

    size: int
    difference: float
    rank: float
    equivalence: float


def verdict(
    pair: Pairing, ps: Corrected | None, rules: Rules, *, detectable: float | None
) -> dict[str, Any]:
    """The verdict of a against b."""
    if pair.tests is None or ps is None:
        sentence = f"{pair.a} and {pair.b} cannot be tested: {pair.reason}."
        return _verdict("not-testable", None, None, sentence, pair)
    contrast, alpha, margin = pair.tests.contrast, rules.alpha, rules.margin
    estimate = float(contrast.estimate)
    within = ps.equivalence <= alpha
    seeds = _design(pair)
    corrected = f" after Holm over {ps.size} pairs" if ps.size > 1 else ""
    if ps.difference <= alpha and estimate != 0:
        kind, better = ("better", pair.a) if estimate < 0 else ("worse", pair.b)
        ends = sorted(abs(float(end)) for end in contrast.limits(1 - alpha))
        small = f"; even so the two are equivalent within {margin:g} nats" if within else ""
        sentence = (
            f"{pair.a} is {kind} than {pair.b} by {nats(abs(estimate))} nats per token"
            f" ({percent(1 - alpha)} interval {nats(ends[0])} to {nats(ends[1])},"
            f" {p_value(ps.difference)}{corrected}, {seeds}){small}."
        )
        return _verdict(kind, better, within, sentence, pair)
    if within:
        low, high = (float(end) for end in contrast.limits(1 - 2 * alpha))
        sentence = (
            f"{pair.a} and {pair.b} are equivalent within {margin:g} nats per token"
            f" ({percent(1 - 2 * alpha)} interval of the difference {nats(low)} to {nats(high)},"
            f" {p_value(ps.equivalence)}{corrected}, {seeds})."
        )
        return _verdict("equivalent", None, True, sentence, pair)
    could = f"{nats(detectable)} nats" if detectable is not None else "unknown size"
    low, high = (float(end) for end in contrast.limits(1 - alpha))
    sentence = (
        f"No evidence of a difference between {pair.a} and {pair.b}"
        f" (difference {nats(estimate)} nats per token, {percent(1 - alpha)} interval {nats(low)}"
        f" to {nats(high)}, {p_value(ps.difference)}{corrected}, {seeds}); a difference of {could}"
        f" would have been detected with {percent(rules.power)} power."
    )
    return _verdict("no-evidence", None, False, sentence, pair)


def nats(value: float) -> str:
    """Four decimals, or two digits for what would round to nothing."""
    return f"{value:.4f}" if abs(value) >= 0.001 or value == 0 else f"{value:.2g}"


def p_value(p: float) -> str:
    """A p-value as it is read: never zero, never more than three decimals."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def percent(share: float) -> str:
    return f"{100 * share:g} %"


def _design(pair: Pairing) -> str:
    if pair.is_paired:
        return f"{len(pair.seeds[0])} paired seeds"
    return f"{len(pair.seeds[0])} and {len(pair.seeds[1])} unpaired seeds"


def _verdict(
    kind: str, better: str | None, within: bool | None, sentence: str, pair: Pairing
) -> dict[str, Any]:
    return {
        "kind": kind,
        "better": better,
        "within_margin": within,
        "sentence": sentence,
        "caveats": list(pair.caveats),
    }
