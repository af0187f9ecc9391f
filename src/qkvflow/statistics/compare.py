"""Pairs of models and their tests: `significance_tests.json`.

The primary test is the t-test on the differences of paired seeds. Five paired seeds
cannot make a signed-rank test significant whatever they are (its least p is 1/16), so the
rank tests are there to be looked at, and the verdicts rest on the t-tests.

Holm corrects within a group of models whose losses compare. Models of other groups are never
tested against these, so merging their records changes nothing here.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

from qkvflow.errors import UserError, unknown
from qkvflow.records import Records
from qkvflow.statistics.contrast import holm
from qkvflow.statistics.effects import detectable_difference, hedges_g, improvement
from qkvflow.statistics.intervals import interval, no_interval
from qkvflow.statistics.pairing import Pairing, Tests, pairing
from qkvflow.statistics.verdict import Corrected, Rules, verdict

METRICS = ("test", "validation")
POWER = 0.8
PRIMARY = "paired t-test (Welch's where seeds are not paired), two-sided, Holm-corrected"
STANDARDISER = "square root of the mean of the two variances over seeds"


def compare_pairs(
    records: Records,
    *,
    metric: str = "test",
    margin: float = 0.01,
    alpha: float = 0.05,
    pairs: Sequence[tuple[str, str, str]] | None = None,
) -> dict[str, Any]:
    """Test pairs of models on the loss in nats per token.

    Every pair of labels, or the `pairs` given as (name, label a, label b). Holm corrects for the
    testable ones of these pairs within each group of models that compare, and for no other.
    """
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    if not 0 < alpha < 0.5:
        raise UserError(f"alpha must be between 0 and 0.5, not {alpha}")
    if not 0 < margin < math.inf:
        raise UserError(f"the equivalence margin must be a number above 0, not {margin}")
    rules = Rules(alpha, margin, POWER)
    found = [pairing(records, name, a, b, metric) for name, a, b in _wanted(records.labels, pairs)]
    labels = list(dict.fromkeys(label for pair in found for label in (pair.a, pair.b)))
    texts = list(dict.fromkeys(pair.text for pair in found if pair.text is not None))
    groups = [[pair for pair in found if pair.text == text] for text in texts]
    corrected = [_corrected(group, rules) for group in groups]
    entries = [
        _entry(pair, None, None, rules)
        if pair.text is None
        else _entry(pair, number := texts.index(pair.text), next(corrected[number]), rules)
        for pair in found
    ]
    return {
        "metric": metric,
        "unit": "nats per token",
        **asdict(rules),
        "labels": labels,
        "groups": [
            {
                "labels": [x for x in labels if any(x in (pair.a, pair.b) for pair in group)],
                "size": _size(group),
            }
            for group in groups
        ],
        "size": _size(found),
        "primary_test": PRIMARY,
        "pairs": entries,
    }


def _wanted(
    labels: Sequence[str], pairs: Sequence[tuple[str, str, str]] | None
) -> list[tuple[str | None, str, str]]:
    if pairs is None:
        return [(None, a, b) for a, b in combinations(labels, 2)]
    for name, a, b in pairs:
        for label in (a, b):
            if label not in labels:
                raise unknown("model", label, labels)
        if a == b:
            raise UserError(f"pair '{name}' compares {a} with itself")
    return list(pairs)


def _size(pairs: Sequence[Pairing]) -> int:
    return sum(pair.tests is not None for pair in pairs)


def _corrected(group: Sequence[Pairing], rules: Rules) -> Iterator[Corrected | None]:
    """The p-values of every pair of a group after Holm; None for a pair that cannot be tested."""
    tests = [pair.tests for pair in group if pair.tests is not None]
    adjusted = zip(
        holm([test.contrast.p for test in tests]).tolist(),
        holm([test.rank.p for test in tests]).tolist(),
        holm([max(test.contrast.tost(rules.margin)) for test in tests]).tolist(),
        strict=True,
    )
    for pair in group:
        yield None if pair.tests is None else Corrected(len(tests), *next(adjusted))


def _entry(pair: Pairing, group: int | None, ps: Corrected | None, rules: Rules) -> dict[str, Any]:
    """One pair as it stands in the file."""
    a, b = pair.values
    if pair.tests is None or ps is None:
        sections = _untested(pair.reason, rules)
    else:
        sections = _tested(pair, pair.tests, ps, rules)
    return {
        "name": pair.name,
        "a": pair.a,
        "b": pair.b,
        "group": group,
        "design": pair.design,
        "reason": pair.reason,
        "n": {"a": len(a), "b": len(b)},
        "seeds": {"a": pair.seeds[0], "b": pair.seeds[1]},
        "left_out": {"a": pair.left_out[0], "b": pair.left_out[1]},
        "values": {"a": a, "b": b},
        "means": {"a": _mean(a), "b": _mean(b)},
        **sections,
        "verdict": verdict(pair, ps, rules, detectable=sections["detectable"]["corrected"]),
    }


def _tested(pair: Pairing, tests: Tests, ps: Corrected, rules: Rules) -> dict[str, Any]:
    contrast, alpha = tests.contrast, rules.alpha
    level = 1 - alpha

    def limits(confidence: float) -> dict[str, Any]:
        return interval(*contrast.limits(confidence), confidence)

    error, df = float(contrast.standard_error), float(contrast.df)
    g = hedges_g(*pair.values, contrast, is_paired=pair.is_paired, level=level)
    better = improvement(*pair.values, is_paired=pair.is_paired, level=level)
    p_lower, p_upper = (float(p) for p in contrast.tost(rules.margin))
    return {
        "difference": {
            "estimate": float(contrast.estimate),
            "sd": error * len(pair.values[0]) ** 0.5 if pair.is_paired else None,
            "standard_error": error,
            "df": df,
            "interval": limits(level),
            "simultaneous_interval": limits(1 - alpha / ps.size),
            "reason": None,
        },
        "tests": {
            "t": {
                "name": "paired t" if pair.is_paired else "Welch t",
                "statistic": float(contrast.t),
                "df": df,
                "p": float(contrast.p),
                "p_holm": ps.difference,
                "reason": None,
            },
            "rank": {
                "name": "Wilcoxon signed-rank" if pair.is_paired else "Mann-Whitney",
                "statistic": tests.rank.statistic,
                "p": tests.rank.p,
                "p_holm": ps.rank,
                "smallest_p": tests.rank.smallest_p,
                "reason": None,
            },
        },
        "hedges_g": {
            "estimate": g.estimate,
            "interval": interval(g.low, g.high, level),
            "standardiser": STANDARDISER,
            "standardiser_value": g.standardiser,
            "correction": g.correction,
            "reason": None,
        },
        "probability_of_improvement": {
            "estimate": better.estimate,
            "interval": interval(better.low, better.high, level),
            "ties": better.ties,
            "reason": None,
        },
        "equivalence": {
            "margin": rules.margin,
            "p": max(p_lower, p_upper),
            "p_lower": p_lower,
            "p_upper": p_upper,
            "p_holm": ps.equivalence,
            "interval": limits(1 - 2 * alpha),
            "equivalent": ps.equivalence <= alpha,
            "reason": None,
        },
        "detectable": {
            "power": rules.power,
            "uncorrected": detectable_difference(contrast, alpha=alpha, power=rules.power),
            "corrected": detectable_difference(contrast, alpha=alpha / ps.size, power=rules.power),
            "reason": None,
        },
    }


def _untested(reason: str | None, rules: Rules) -> dict[str, Any]:
    """The same places as `_tested`, empty."""
    alone = no_interval(1 - rules.alpha, reason)

    def nothing(*names: str, **known: Any) -> dict[str, Any]:
        return {**dict.fromkeys(names), **known, "reason": reason}

    return {
        "difference": nothing(
            *("estimate", "sd", "standard_error", "df"),
            interval=alone,
            simultaneous_interval=alone,
        ),
        "tests": {
            "t": nothing("name", "statistic", "df", "p", "p_holm"),
            "rank": nothing("name", "statistic", "p", "p_holm", "smallest_p"),
        },
        "hedges_g": nothing(
            *("estimate", "standardiser_value", "correction"),
            interval=alone,
            standardiser=STANDARDISER,
        ),
        "probability_of_improvement": nothing("estimate", "ties", interval=alone),
        "equivalence": nothing(
            *("p", "p_lower", "p_upper", "p_holm", "equivalent"),
            margin=rules.margin,
            interval=no_interval(1 - 2 * rules.alpha, reason),
        ),
        "detectable": nothing("uncorrected", "corrected", power=rules.power),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
