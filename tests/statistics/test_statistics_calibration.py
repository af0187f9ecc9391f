"""Calibration by simulation: what the tests and intervals promise, they keep.

Losses are a seed's effect, shared by all models, plus noise of its own for each model and seed. The
simulated quantities are the vectorised ones that `compare_pairs` is made of; a last test checks
that its verdicts are these decisions.
"""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from qkvflow.records import Record, Records
from qkvflow.statistics import compare_pairs
from qkvflow.statistics.contrast import Contrast, holm, paired, welch
from qkvflow.statistics.effects import (
    detectable_difference,
    hedges_g,
    improvement,
    small_sample_correction,
    standardiser_df,
)
from qkvflow.statistics.intervals import bca_limits, t_limits

TRIALS = 20_000
MODELS, SEEDS = 5, 5
PAIRS = list(combinations(range(MODELS), 2))


def monte_carlo(rate: float, trials: int = TRIALS) -> float:
    """Three standard errors of a simulated rate."""
    return 3 * (rate * (1 - rate) / trials) ** 0.5


def losses(trials: int, models: int = MODELS, seeds: int = SEEDS, *, stream: int) -> np.ndarray:
    """(trials, models, seeds) losses of models that are all equal."""
    generator = np.random.default_rng(stream)
    seed_effect = generator.normal(0, 0.03, (trials, 1, seeds))
    return 2.0 + seed_effect + generator.normal(0, 0.02, (trials, models, seeds))


def all_pairs(values: np.ndarray) -> Contrast:
    first, second = zip(*PAIRS, strict=True)
    return paired(values[:, list(first)], values[:, list(second)])


def test_family_wise_false_positive_rate():
    p = all_pairs(losses(TRIALS, stream=1)).p
    uncorrected = (p <= 0.05).any(axis=-1).mean()
    corrected = (holm(p) <= 0.05).any(axis=-1).mean()
    # Without the correction one comparison in five or so finds something among equals.
    assert uncorrected > 0.15
    assert corrected <= 0.05 + monte_carlo(0.05)
    # Holm is exact for one pair and not wasteful for ten: the rate is not far below its bound.
    assert corrected > 0.02


def test_holm_protects_the_equal_models_when_others_differ():
    values = losses(TRIALS, stream=2)
    values[:, :2] += 0.2
    p = holm(all_pairs(values).p)
    equal = [k for k, (i, j) in enumerate(PAIRS) if (i < 2) == (j < 2)]
    different = [k for k in range(len(PAIRS)) if k not in equal]
    assert (p[:, equal] <= 0.05).any(axis=-1).mean() <= 0.05 + monte_carlo(0.05)
    assert (p[:, different] <= 0.05).mean() > 0.9


@pytest.mark.parametrize("n", [3, 5, 10])
def test_t_intervals_cover(n: int):
    values = losses(TRIALS, models=2, seeds=n, stream=3)
    low, high = t_limits(values[:, 0], 0.95)
    assert 0.93 < ((low <= 2) & (high >= 2)).mean() < 0.97
    low, high = paired(values[:, 0], values[:, 1]).limits(0.95)
    assert 0.93 < ((low <= 0) & (high >= 0)).mean() < 0.97


def test_welch_intervals_cover_when_variances_differ():
    generator = np.random.default_rng(4)
    contrast = welch(generator.normal(2, 0.1, (TRIALS, 5)), generator.normal(2, 0.03, (TRIALS, 8)))
    low, high = contrast.limits(0.95)
    assert 0.93 < ((low <= 0) & (high >= 0)).mean() < 0.97


def test_simultaneous_intervals_cover_together():
    low, high = all_pairs(losses(TRIALS, stream=5)).limits(1 - 0.05 / len(PAIRS))
    assert ((low <= 0) & (high >= 0)).all(axis=-1).mean() >= 0.95 - monte_carlo(0.05)


def test_bca_under_covers_with_five_seeds_as_documented():
    generator = np.random.default_rng(6)

    def coverage(trials: int, n: int) -> float:
        covered = 0
        for values in generator.normal(size=(trials // 100, 100, n)):
            low, high = bca_limits(values, 0.95, resamples=999, generator=generator)
            covered += int(((low <= 0) & (high >= 0)).sum())
        return covered / trials

    assert coverage(4_000, 5) == pytest.approx(0.84, abs=0.02)
    assert coverage(2_000, 40) == pytest.approx(0.94, abs=0.02)


@pytest.mark.parametrize("spread", [0.002, 0.005, 0.02])
def test_false_equivalence_at_the_margin(spread: float):
    generator = np.random.default_rng(7)
    margin = 0.01
    base = generator.normal(2, 0.03, (TRIALS, SEEDS))
    other = base + margin + generator.normal(0, spread, (TRIALS, SEEDS))
    p = np.maximum(*paired(other, base).tost(margin))
    rate = (p <= 0.05).mean()
    assert rate <= 0.05 + monte_carlo(0.05)
    if spread == 0.002:
        # Where the other end of the margin is far away, the test uses its whole level.
        assert rate > 0.05 - monte_carlo(0.05)


def test_equivalence_is_found_where_it_is():
    generator = np.random.default_rng(8)
    base = generator.normal(2, 0.03, (2_000, SEEDS))
    other = base + generator.normal(0, 0.003, (2_000, SEEDS))
    assert (np.maximum(*paired(other, base).tost(0.01)) <= 0.05).mean() > 0.95


def test_detectable_difference_is_detected_with_its_power():
    # With the true spread known, the difference found for 80 % power is detected in 80 %.
    generator = np.random.default_rng(9)
    spread = 0.02
    truth = Contrast(0.0, spread / SEEDS**0.5, SEEDS - 1)
    difference = detectable_difference(truth, alpha=0.05, power=0.8)
    found = paired(generator.normal(difference, spread, (TRIALS, SEEDS)), np.zeros(SEEDS))
    assert (found.p <= 0.05).mean() == pytest.approx(0.8, abs=monte_carlo(0.8))


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_hedges_g_is_all_but_unbiased(correlation: float):
    generator = np.random.default_rng(10)
    shared = generator.normal(size=(200_000, SEEDS)) * correlation**0.5
    own = generator.normal(size=(2, 200_000, SEEDS)) * (1 - correlation) ** 0.5
    a, b = shared + own[0] + 1.0, shared + own[1]
    standardiser = np.sqrt((a.var(axis=-1, ddof=1) + b.var(axis=-1, ddof=1)) / 2)
    d = (a - b).mean(axis=-1) / standardiser
    g = small_sample_correction(standardiser_df(a, b, is_paired=True)) * d
    assert g.mean() == pytest.approx(1.0, abs=0.04)
    # What is corrected is not small: uncorrected, the effect is overstated by a tenth or more.
    assert d.mean() > 1.09


@pytest.mark.parametrize("correlation", [0.0, 0.7])
@pytest.mark.parametrize("effect", [0.5, 1.0, 3.0])
def test_hedges_g_intervals_cover(correlation: float, effect: float):
    trials = 2_000
    generator = np.random.default_rng(13)
    shared = generator.normal(size=(trials, SEEDS)) * correlation**0.5
    own = generator.normal(size=(2, trials, SEEDS)) * (1 - correlation) ** 0.5
    a, b = shared + own[0] + effect, shared + own[1]
    contrast = paired(a, b)
    standardiser = np.sqrt((a.var(axis=-1, ddof=1) + b.var(axis=-1, ddof=1)) / 2)
    # The interval holds the true effect exactly when its noncentrality leaves no small tail.
    noncentrality = effect * standardiser / contrast.standard_error
    below = stats.nct.cdf(contrast.t, SEEDS - 1, noncentrality)
    inside = (below > 0.025) & (below < 0.975)
    assert 0.92 < inside.mean() < 0.985
    for trial in range(5):
        single = paired(a[trial], b[trial])
        g = hedges_g(a[trial], b[trial], single, is_paired=True, level=0.95)
        assert (g.low < effect < g.high) == inside[trial]


@pytest.mark.parametrize("is_paired", [True, False])
@pytest.mark.parametrize("shift", [0.0, 0.1])
def test_probability_of_improvement_covers(is_paired: bool, shift: float):
    generator = np.random.default_rng(11)
    a = generator.normal(0, 0.1, (1_000, SEEDS))
    b = generator.normal(shift, 0.1, (1_000, SEEDS))
    truth = float((generator.normal(0, 0.1, 10**6) < generator.normal(shift, 0.1, 10**6)).mean())
    found = [improvement(x, y, is_paired=is_paired, level=0.95) for x, y in zip(a, b, strict=True)]
    covered = np.mean([each.low <= truth <= each.high for each in found])
    assert covered >= 0.95 - monte_carlo(0.05, 1_000)
    assert np.mean([each.estimate for each in found]) == pytest.approx(truth, abs=0.03)


def in_memory(values: np.ndarray) -> Records:
    """Records of models a, b, c, ... with the given (models, seeds) test losses."""
    finished = tuple(
        Record(
            label="abcde"[model],
            seed=seed,
            finished=True,
            error=None,
            content={"losses": {"test": {"nats": float(values[model, seed])}}},
        )
        for model, seed in np.ndindex(*values.shape)
    )
    return Records(finished=finished)


def test_verdicts_are_the_simulated_decisions():
    values = losses(12, stream=12)
    values[4:8, 1] += 0.1  # one model worse
    values[8:] = values[8:, :1] + 0.1 * (values[8:] - 2.0)  # all within the margin
    contrast = all_pairs(values)
    p, p_equal = holm(contrast.p), holm(np.maximum(*contrast.tost(0.01)))
    seen = set()
    for trial in range(len(values)):
        pairs = compare_pairs(in_memory(values[trial]))["pairs"]
        for k, pair in enumerate(pairs):
            if p[trial, k] <= 0.05:
                expected = "better" if contrast.estimate[trial, k] < 0 else "worse"
            else:
                expected = "equivalent" if p_equal[trial, k] <= 0.05 else "no-evidence"
            assert pair["verdict"]["kind"] == expected
            seen.add(expected)
    assert seen == {"better", "worse", "equivalent", "no-evidence"}
