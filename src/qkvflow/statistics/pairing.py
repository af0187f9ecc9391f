"""Which values of two models may be compared, and how: paired, unpaired or not at all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkvflow.records import Record, Records, finite
from qkvflow.statistics.contrast import Contrast, paired, welch
from qkvflow.statistics.intervals import MINIMUM_SEEDS, constant
from qkvflow.statistics.ranks import RankTest, mann_whitney, wilcoxon

# Budgets closer than this are equal for the purpose of a caveat: training stops at whole steps.
_BUDGET_TOLERANCE = 0.05


@dataclass(frozen=True)
class Tests:
    """What a pair that can be tested is tested with."""

    contrast: Contrast
    rank: RankTest


@dataclass(frozen=True)
class Pairing:
    """The values of a pair. `tests` is None exactly when `design` is `none`.

    `text` is what both were evaluated on, None if losses on it do not compare.
    """

    name: str | None
    a: str
    b: str
    design: str
    reason: str | None
    text: tuple[Any, ...] | None
    seeds: tuple[list[int], list[int]]
    left_out: tuple[list[int], list[int]]
    values: tuple[list[float], list[float]]
    tests: Tests | None
    caveats: list[str]

    @property
    def is_paired(self) -> bool:
        return self.design == "paired"


def pairing(records: Records, name: str | None, a: str, b: str, metric: str) -> Pairing:
    """Decide the design of one pair and gather its values."""
    runs_a, runs_b = records.of(a), records.of(b)
    values_a, values_b = _losses(runs_a, metric), _losses(runs_b, metric)
    common = sorted(values_a.keys() & values_b.keys())
    seeds_a, seeds_b = sorted(values_a), sorted(values_b)
    caveats = _caveats(records, a, b, metric)
    lacking = next((x for x, values in ((a, values_a), (b, values_b)) if not values), None)
    if lacking is not None:
        reason = f"{lacking} has no finished run with a finite {metric} loss"
    else:
        reason = _why_not_comparable(runs_a[0], runs_b[0], metric)
    design, text = "none", None
    if reason is None:
        text = evaluated_on(runs_a[0], metric)
        unlike = _why_not_paired(runs_a[0], runs_b[0])
        if unlike is None and len(common) >= MINIMUM_SEEDS:
            design = "paired"
            seeds_a = seeds_b = common
        elif min(len(seeds_a), len(seeds_b)) >= MINIMUM_SEEDS:
            design = "unpaired"
            reason = unlike or f"only {len(common)} common seeds; {MINIMUM_SEEDS} are needed"
        else:
            reason = (
                f"{a} has {len(seeds_a)} and {b} has {len(seeds_b)} usable seeds;"
                f" at least {MINIMUM_SEEDS} each are needed"
            )
    kept_a = [values_a[seed] for seed in seeds_a]
    kept_b = [values_b[seed] for seed in seeds_b]
    left_out = (
        [seed for seed in sorted(values_a) if seed not in seeds_a],
        [seed for seed in sorted(values_b) if seed not in seeds_b],
    )
    for label, seeds in zip((a, b), left_out, strict=True):
        if seeds:
            caveats.append(f"{label}: {_seeds(seeds)} left out for want of a partner")
    if design != "none":
        degenerate = _why_degenerate(kept_a, kept_b, design)
        if degenerate is not None:
            design, reason = "none", degenerate
    tests = None
    if design == "paired":
        differences = np.subtract(kept_a, kept_b)
        tests = Tests(paired(kept_a, kept_b), wilcoxon(differences))
    elif design == "unpaired":
        tests = Tests(welch(kept_a, kept_b), mann_whitney(kept_a, kept_b))
    return Pairing(
        name=name,
        a=a,
        b=b,
        design=design,
        reason=reason,
        text=text,
        seeds=(seeds_a, seeds_b),
        left_out=left_out,
        values=(kept_a, kept_b),
        tests=tests,
        caveats=caveats,
    )


def _losses(runs: Sequence[Record], metric: str) -> dict[int, float]:
    found = {run.seed: run.loss(metric, "nats") for run in runs}
    return {seed: loss for seed, loss in found.items() if loss is not None}


def evaluated_on(run: Record, metric: str) -> tuple[Any, ...]:
    """Tokenizer, vocabulary and text: what must agree for losses per token to compare."""
    data = run.section("data")
    return data.get("tokenizer"), data.get("vocab_size"), _digest(run, metric)


def _why_not_comparable(a: Record, b: Record, metric: str) -> str | None:
    """Losses per token compare only on the same text cut into the same tokens."""
    *tokens_a, text_a = evaluated_on(a, metric)
    *tokens_b, text_b = evaluated_on(b, metric)
    if tokens_a != tokens_b:
        return f"{a.label} and {b.label} use different tokenizers: nats per token do not compare"
    if text_a != text_b:
        return f"{a.label} and {b.label} were evaluated on different {metric} data"
    return None


def _why_not_paired(a: Record, b: Record) -> str | None:
    """The same seed means the same batches only if data, batch size and context agree."""
    if _digest(a, "train") != _digest(b, "train"):
        return "trained on different data: a seed does not mean the same batches"
    shape = ("batch_size", "context")
    trained_a, trained_b = a.section("training"), b.section("training")
    if [trained_a.get(key) for key in shape] != [trained_b.get(key) for key in shape]:
        return "batch size or context differ: a seed does not mean the same batches"
    return None


def _why_degenerate(a: list[float], b: list[float], design: str) -> str | None:
    """A t-test divides by a spread; without any there is no test."""
    if design == "unpaired":
        if constant(a) and constant(b):
            return "neither model varies over seeds: the spread cannot be estimated"
        return None
    differences = np.asarray(a) - np.asarray(b)
    # Rounding is relative to the losses, from which the differences were taken.
    rounding = 1e-12 * max(np.max(np.abs(a)), np.max(np.abs(b)))
    if np.all(np.abs(differences) <= rounding):
        return f"both have the same loss on each of {len(a)} seeds"
    if np.std(differences) <= rounding:
        return "the difference is the same on every seed: its spread cannot be estimated"
    return None


def _caveats(records: Records, a: str, b: str, metric: str) -> list[str]:
    lines = []
    for label in (a, b):
        failed = [record.seed for record in records.failures(label)]
        if failed:
            lines.append(f"{label}: {_seeds(failed)} failed and left out")
        missing = [r.seed for r in records.of(label) if r.loss(metric, "nats") is None]
        if missing:
            lines.append(f"{label}: {_seeds(missing)} without a finite {metric} loss left out")
        still_open = [seed for name, seed in records.unfinished if name == label]
        if still_open:
            lines.append(f"{label}: {_seeds(still_open)} not finished")
    budgets = mean_budget(records.of(a)), mean_budget(records.of(b))
    if all(budgets[0][key] and budgets[1][key] for key in budgets[0]):
        ratios = [budgets[0][key] / budgets[1][key] for key in budgets[0]]
        if all(abs(np.log(ratio)) > _BUDGET_TOLERANCE for ratio in ratios):
            lines.append(f"{a} and {b} agree neither in steps, tokens, FLOPs nor seconds spent")
    return lines


def mean_budget(records: Sequence[Record]) -> dict[str, Any]:
    """What training spent, averaged over runs; None where a run does not say."""
    means: dict[str, Any] = {}
    for key in ("steps", "tokens", "flops", "seconds"):
        spent = [finite(record.section("budget").get(key)) for record in records]
        known = [value for value in spent if value is not None]
        means[key] = float(np.mean(known)) if known and len(known) == len(spent) else None
    return means


def _digest(run: Record, split: str) -> Any:
    """What identifies the text of a split; the whole corpus where splits carry no digest."""
    data = run.section("data")
    own = ((data.get("splits") or {}).get(split) or {}).get("sha256")
    return own or data.get("sha256")


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
