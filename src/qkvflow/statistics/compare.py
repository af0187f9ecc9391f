"""Pairs of models, tested as one family: `significance_tests.json`.

The primary test is the t-test on the differences of paired seeds. Five paired seeds
cannot make a signed-rank test significant whatever they are (its least p is 1/16), so the
rank tests are there to be looked at, and the verdicts rest on the t-tests.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from qkvflow.errors import UserError, unknown
from qkvflow.records import Records
from qkvflow.statistics.contrast import holm
from qkvflow.statistics.effects import detectable_difference, hedges_g, improvement
from qkvflow.statistics.intervals import interval, no_interval
from qkvflow.statistics.pairing import Pairing, pairing
from qkvflow.statistics.ranks import RankTest, mann_whitney, wilcoxon
from qkvflow.statistics.verdict import verdict

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
    """Test pairs of models as one family on the loss in nats per token.

    Every pair of labels, or the `pairs` given as (name, label a, label b). Holm corrects for the
    testable pairs of this family and no other.
    """
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    if not 0 < alpha < 0.5:
        raise UserError(f"alpha must be between 0 and 0.5, not {alpha}")
    if not margin > 0:
        raise UserError(f"the equivalence margin must be above 0, not {margin}")
    found = [pairing(records, name, a, b, metric) for name, a, b in _wanted(records.labels, pairs)]
    tested = [pair for pair in found if pair.contrast is not None]
    rank_tests = [_rank_test(pair) for pair in found]
    p_t = _adjusted([pair.contrast and pair.contrast.p for pair in found])
    p_rank = _adjusted([test.p if test else None for test in rank_tests])
    p_equal = _adjusted([pair.contrast and max(pair.contrast.tost(margin)) for pair in found])
    family = {
        "metric": metric,
        "unit": "nats per token",
        "alpha": alpha,
        "margin": margin,
        "power": POWER,
        "labels": list(dict.fromkeys(label for pair in found for label in (pair.a, pair.b))),
        "size": len(tested),
        "primary_test": PRIMARY,
    }
    entries = [
        _entry(pair, rank_test, adjusted, family)
        for pair, rank_test, *adjusted in zip(found, rank_tests, p_t, p_rank, p_equal, strict=True)
    ]
    return {**family, "pairs": entries}


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


def _rank_test(pair: Pairing) -> RankTest | None:
    a, b = pair.values
    if pair.contrast is None:
        return None
    if pair.is_paired:
        return wilcoxon([x - y for x, y in zip(a, b, strict=True)])
    return mann_whitney(a, b)


def _adjusted(ps: Sequence[float | None]) -> list[float | None]:
    """Holm over the p-values that exist."""
    adjusted = iter(holm([p for p in ps if p is not None]).tolist())
    return [None if p is None else next(adjusted) for p in ps]


def _entry(
    pair: Pairing,
    rank_test: RankTest | None,
    adjusted: Sequence[float | None],
    family: dict[str, Any],
) -> dict[str, Any]:
    """One pair as it stands in the file."""
    p_t, p_rank, p_equal = adjusted
    a, b = pair.values
    entry: dict[str, Any] = {
        "name": pair.name,
        "a": pair.a,
        "b": pair.b,
        "design": pair.design,
        "reason": pair.reason,
        "n": {"a": len(a), "b": len(b)},
        "seeds": {"a": pair.seeds[0], "b": pair.seeds[1]},
        "left_out": {"a": pair.left_out[0], "b": pair.left_out[1]},
        "values": {"a": a, "b": b},
        "means": {"a": _mean(a), "b": _mean(b)},
        "difference": _difference(pair, family),
        "tests": {"t": _t_test(pair, p_t), "rank": _rank(pair, rank_test, p_rank)},
        "hedges_g": _hedges_g(pair, family),
        "probability_of_improvement": _improvement(pair, family),
        "equivalence": _equivalence(pair, p_equal, family),
        "detectable": _detectable(pair, family),
    }
    entry["verdict"] = verdict(
        pair,
        p_difference=p_t,
        p_equivalence=p_equal,
        detectable=entry["detectable"]["corrected"],
        size=family["size"],
        alpha=family["alpha"],
        margin=family["margin"],
        power=family["power"],
    )
    return entry


def _difference(pair: Pairing, family: dict[str, Any]) -> dict[str, Any]:
    level = 1 - family["alpha"]
    # With no testable pair there is no family; its level is then that of one pair.
    all_level = 1 - family["alpha"] / max(1, family["size"])
    if pair.contrast is None:
        return {
            "estimate": None,
            "sd": None,
            "standard_error": None,
            "df": None,
            "interval": no_interval(level, str(pair.reason)),
            "simultaneous_interval": no_interval(all_level, str(pair.reason)),
            "reason": pair.reason,
        }
    error = float(pair.contrast.standard_error)
    return {
        "estimate": float(pair.contrast.estimate),
        "sd": error * len(pair.values[0]) ** 0.5 if pair.is_paired else None,
        "standard_error": error,
        "df": float(pair.contrast.df),
        "interval": interval(*pair.contrast.limits(level), level),
        "simultaneous_interval": interval(*pair.contrast.limits(all_level), all_level),
        "reason": None,
    }


def _t_test(pair: Pairing, p_holm: float | None) -> dict[str, Any]:
    contrast = pair.contrast
    return {
        "name": {"paired": "paired t", "unpaired": "Welch t"}.get(pair.design),
        "statistic": None if contrast is None else float(contrast.t),
        "df": None if contrast is None else float(contrast.df),
        "p": None if contrast is None else float(contrast.p),
        "p_holm": p_holm,
        "reason": None if contrast is not None else pair.reason,
    }


def _rank(pair: Pairing, test: RankTest | None, p_holm: float | None) -> dict[str, Any]:
    names = {"paired": "Wilcoxon signed-rank", "unpaired": "Mann-Whitney"}
    return {
        "name": names.get(pair.design),
        "statistic": None if test is None else test.statistic,
        "p": None if test is None else test.p,
        "p_holm": p_holm,
        "smallest_p": None if test is None else test.smallest_p,
        "reason": None if test is not None else pair.reason,
    }


def _hedges_g(pair: Pairing, family: dict[str, Any]) -> dict[str, Any]:
    level = 1 - family["alpha"]
    g = None
    if pair.contrast is not None:
        g = hedges_g(*pair.values, pair.contrast, is_paired=pair.is_paired, level=level)
    return {
        "estimate": g and g.estimate,
        "interval": interval(g.low, g.high, level) if g else no_interval(level, str(pair.reason)),
        "standardiser": STANDARDISER,
        "standardiser_value": g and g.standardiser,
        "correction": g and g.correction,
        "reason": None if g else pair.reason,
    }


def _improvement(pair: Pairing, family: dict[str, Any]) -> dict[str, Any]:
    level = 1 - family["alpha"]
    if pair.contrast is None:
        nothing = no_interval(level, str(pair.reason))
        return {"estimate": None, "interval": nothing, "ties": None, "reason": pair.reason}
    found = improvement(*pair.values, is_paired=pair.is_paired, level=level)
    return {
        "estimate": found.estimate,
        "interval": interval(found.low, found.high, level),
        "ties": found.ties,
        "reason": None,
    }


def _equivalence(pair: Pairing, p_holm: float | None, family: dict[str, Any]) -> dict[str, Any]:
    level = 1 - 2 * family["alpha"]
    lower = upper = None
    ends = no_interval(level, str(pair.reason))
    if pair.contrast is not None:
        lower, upper = (float(p) for p in pair.contrast.tost(family["margin"]))
        ends = interval(*pair.contrast.limits(level), level)
    return {
        "margin": family["margin"],
        "p": None if lower is None or upper is None else max(lower, upper),
        "p_lower": lower,
        "p_upper": upper,
        "p_holm": p_holm,
        "interval": ends,
        "equivalent": None if p_holm is None else p_holm <= family["alpha"],
        "reason": None if lower is not None else pair.reason,
    }


def _detectable(pair: Pairing, family: dict[str, Any]) -> dict[str, Any]:
    alpha, power = family["alpha"], family["power"]
    alone = together = None
    if pair.contrast is not None:
        alone = detectable_difference(pair.contrast, alpha=alpha, power=power)
        together = detectable_difference(pair.contrast, alpha=alpha / family["size"], power=power)
    return {
        "power": power,
        "uncorrected": alone,
        "corrected": together,
        "reason": None if alone is not None else pair.reason,
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
