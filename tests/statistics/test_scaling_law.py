"""The scaling law: known exponents are recovered, intervals cover, derivatives and minima are
right, and a published law is found again."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import approx_fprime, minimize
from scipy.stats import binom

from qkvflow.statistics.scaling_law import Fit, Runs, _Problem, _resample, fit, needs, runs_of

TRUE = {"A": 60.0, "B": 120.0, "E": 1.3, "alpha": 0.35, "beta": 0.4, "phi": 0.5}
LAW = Fit(TRUE, {}, (), ())


def grid(
    seeds: int = 1,
    widths: Any = (32, 48, 64, 96, 128),
    repeats: Any = (1, 2, 4, 8),
    tokens: Any = (3e5, 1e6, 3e6),
) -> Runs:
    """Cells of blocks with a tenth of their weights used once, as a grid of runs has them."""
    cells = [
        (1.2 * width**2, 12.0 * width**2, float(r), count)
        for width in widths
        for r in repeats
        for count in tokens
        for _ in range(seeds)
    ]
    once, shared, r, trained = np.array(cells).T
    return Runs(once, shared, r, trained, LAW.loss(once, shared, r, trained))


def noisy(runs: Runs, seed: int, sd: float = 0.004) -> Runs:
    noise = np.random.default_rng(seed).normal(0, sd, len(runs.loss))
    return dataclasses.replace(runs, loss=runs.loss * np.exp(noise))


def test_exact_losses_give_the_law_back():
    found = fit(grid(), resamples=0)
    for name, value in TRUE.items():
        assert found.values[name] == pytest.approx(value, rel=1e-3)
    assert found.warnings == ()
    assert max(map(abs, found.residuals)) < 1e-6


def test_exponents_are_within_their_intervals():
    """Of 24 simulations with 95 % intervals; benchmarks/scaling_law.py makes 200."""
    count = 24
    hits = dict.fromkeys(TRUE, 0)
    for seed in range(count):
        found = fit(noisy(grid(), seed), resamples=120, seed=seed)
        for name, value in TRUE.items():
            low, high = found.intervals[name]
            hits[name] += low <= value <= high
    # What a coverage of 90 % would fall short of once in two hundred times.
    least = int(binom.ppf(0.005, count, 0.9))
    assert all(least <= each for each in hits.values()), hits


def test_derivatives_and_minima_agree_with_scipy():
    problem, _ = _Problem.of(noisy(grid(), 3), 1e-2)
    best = problem.search()
    away = best + np.array([0.1, -0.2, 0.05, 0.03, -0.02, 0.1])

    def cost(p: np.ndarray) -> float:
        return float(problem._huber(problem.residuals(p[None])).sum())

    residuals, gradient, hessian = problem._derivatives(away[None])
    slope = (np.clip(residuals, -1e-2, 1e-2)[..., None] * gradient).sum(axis=1)[0]
    numeric = np.asarray(approx_fprime(away, cost, 1e-7))
    np.testing.assert_allclose(slope, numeric, rtol=1e-3, atol=1e-5)
    second = np.asarray(
        approx_fprime(away, lambda p: problem._derivatives(p[None])[1].ravel(), 1e-7)
    )
    np.testing.assert_allclose(hessian[0], second.reshape(hessian[0].shape), atol=1e-5)
    other = minimize(cost, away, method="Nelder-Mead", options={"maxiter": 6000, "fatol": 1e-14})
    assert cost(best) <= other.fun * (1 + 1e-6)


def test_the_fits_of_a_bootstrap_are_minima():
    runs = noisy(grid(), 5)
    problem, _ = _Problem.of(runs, 1e-2)
    weights = _resample(runs.cells, 3, np.random.default_rng(0))
    assert (weights.sum(axis=1) == len(runs.loss)).all()
    found = problem.refine(np.tile(problem.search(), (3, 1)), weights)
    for p, weight in zip(found, weights, strict=True):

        def cost(p: np.ndarray, weight: np.ndarray = weight) -> float:
            return float((weight * problem._huber(problem.residuals(p[None]))[0]).sum())

        other = minimize(cost, p + 0.01, method="Nelder-Mead", options={"maxiter": 6000})
        assert cost(p) <= other.fun * (1 + 1e-4)


FEW: dict[str, Any] = {"widths": (32, 64, 96), "repeats": (2, 4, 8)}
"""A small grid, whose exponents much noise leaves open."""


@pytest.mark.parametrize("tokens", [(3e5, 1e6), (3e5, 1e6, 3e6)])
def test_rounding_does_not_matter(tokens: Any):
    """Losses that differ by less than they are known to have the same law and the same intervals,
    where the runs determine little too: what a machine rounds otherwise is not in a table."""
    runs = noisy(grid(**FEW, tokens=tokens), 2, sd=0.03)
    first, again = fit(runs), fit(dataclasses.replace(runs, loss=runs.loss * (1 + 1e-13)))
    assert any("do not determine" in warning for warning in first.warnings)
    assert again.values == pytest.approx(first.values, rel=1e-4)
    for name, ends in first.intervals.items():
        assert again.intervals[name] == pytest.approx(ends, rel=1e-3, abs=1e-9), name


def test_bounds_are_minima_too():
    """Of resamples that determine little, beside SciPy's bounded search from the same start."""
    runs = noisy(grid(**FEW), 2, sd=0.03)
    problem, _ = _Problem.of(runs, 1e-2)
    weights = _resample(runs.cells, 6, np.random.default_rng(0))
    start = problem.search()
    found = problem.refine(np.tile(start, (6, 1)), weights)
    low, high = problem._ends
    assert ((found >= low) & (found <= high)).all()
    assert ((found == low) | (found == high)).any()
    for p, weight in zip(found, weights, strict=True):

        def cost(p: np.ndarray, weight: np.ndarray = weight) -> float:
            return 1e4 * float((weight * problem._huber(problem.residuals(p[None]))[0]).sum())

        options = {"maxiter": 3000, "maxfun": 100_000}
        other = minimize(
            cost, start, method="L-BFGS-B", bounds=[*zip(low, high, strict=True)], options=options
        )
        assert cost(p) <= other.fun * (1 + 1e-3)


def test_two_numbers_of_tokens_leave_no_e():
    """Any beta fits one difference: with E left out there is one, and phi is what it was."""
    found = fit(grid(tokens=(3e5, 1e6)), resamples=0)
    assert found.values["E"] == 0
    assert any("E is left out" in warning for warning in found.warnings)
    assert found.values["phi"] == pytest.approx(TRUE["phi"], rel=1e-3)
    assert found.values["alpha"] == pytest.approx(TRUE["alpha"], rel=1e-3)
    assert max(map(abs, found.residuals)) < 1e-6
    rest = [TRUE["E"] + TRUE["B"] * d ** -TRUE["beta"] for d in (3e5, 1e6)]
    beta = math.log(rest[0] / rest[1]) / math.log(1e6 / 3e5)
    assert found.values["beta"] == pytest.approx(beta, rel=1e-3)


def test_seeds_of_a_cell_are_drawn_together():
    runs = grid(seeds=3, widths=(32,), repeats=(1,))
    assert runs.cells.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    weights = _resample(runs.cells, 50, np.random.default_rng(1)).reshape(50, 3, 3).sum(axis=2)
    assert (weights % 3 == 0).all(), "a cell counts as often as it was drawn, with all its seeds"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"widths": (32, 33), "repeats": (1, 2)}, "do not determine alpha"),
        ({"repeats": (4,)}, "phi is left out"),
        ({"widths": (64,), "repeats": (4,)}, "alpha and phi are left out"),
    ],
)
def test_what_the_runs_cannot_show_is_said(changes: dict[str, Any], said: str):
    found = fit(noisy(grid(**changes), 1, sd=0.01), resamples=60)
    assert any(said in warning for warning in found.warnings), found.warnings


def test_without_shared_weights_it_is_the_form_of_hoffmann_et_al():
    """Their law (approach 3, 2022: 1.69 + 406.4 N^-0.34 + 410.7 D^-0.28) is found again from losses
    that obey it, over models and tokens of the sizes they trained."""
    sizes = np.repeat(np.geomspace(7e7, 1.6e10, 9), 6)
    tokens = np.tile(np.geomspace(5e9, 4e11, 6), 9)
    nothing = np.zeros_like(sizes)
    loss = 1.69 + 406.4 * sizes**-0.34 + 410.7 * tokens**-0.28
    found = fit(Runs(sizes, nothing, nothing + 1, tokens, loss), delta=1e-3, resamples=0)
    published = {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28, "phi": 0.0}
    assert found.values == pytest.approx(published, rel=2e-3)
    assert found.warnings == ()


def test_what_reaches_a_loss():
    """With equal laws and phi = 1, a model that repeats r times needs 1 / r of the parameters."""
    law = {**TRUE, "phi": 1.0}
    fits = {"own": Fit(TRUE, {}, (), ()), "shared": Fit(law, {}, (), ())}
    points = []
    for width in (32, 64, 128):
        size = 12.0 * width**2
        for label, once, shared, repeats in (("own", 4 * size, 0.0, 4), ("shared", 0.0, size, 4)):
            point = {"label": label, "once": once, "shared": shared, "repeats": repeats}
            points.append({**point, "tokens": 1e6, "flops": 6e6 * 4 * size, "loss": 2.0})
    found = needs(points, fits, "own")
    assert len(found) == 3
    for each in found:
        assert each["parameters"] == pytest.approx(each["reference_parameters"] / 4)
        assert each["flops"] == pytest.approx(each["reference_flops"])
        assert each["beyond"] == pytest.approx(1.0)
    hopeless = {**fits, "shared": Fit({**law, "E": 9.0}, {}, (), ())}
    assert needs(points, hopeless, "own")[0]["parameters"] is None
    assert math.isclose(float(runs_of(points).tokens[0]), 1e6)
