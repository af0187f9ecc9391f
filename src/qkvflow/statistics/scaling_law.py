"""A scaling law with shared weights, fitted to the losses of runs.

    L = E + A (N_once + r^phi N_shared)^-alpha + B D^-beta

N_once are parameters that are used once in a pass, N_shared those that are used r times, D the
training tokens. phi is what a repeat of shared weights is worth: 0 nothing, 1 as much as weights of
its own. Without shared weights this is the form of Hoffmann et al. 2022, and it is fitted as there:
the Huber loss of log L, with the sum as a log-sum-exp of

    log A - alpha log N,  log B - beta log D,  log E

minimised from many starts, all together, by damped Newton steps within the bounds. N and D are
centred, so that log A and log B are of the size of a loss. Intervals are percentiles of a bootstrap
over cells (a model's size, depth and tokens) and over the seeds in each; the resampled fits start
at the best one.

Two numbers of tokens show one difference, which any beta fits with a B and an E of its own. E is
left out of such a fit: what more tokens would leave is in B D^-beta, and beta says how fast the
loss falls there and nothing of where it ends.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

DELTA = 1e-2
"""Of the Huber loss: residuals of log L up to here are averaged, larger ones count less."""
NAMES = ("log_a", "log_b", "log_e", "alpha", "beta", "phi")
BOUNDS = {"alpha": (0.01, 3.0), "beta": (0.01, 3.0), "phi": (-1.0, 2.0)}
"""Where exponents are sought."""
_EXPONENTS = tuple(BOUNDS)
_BOUNDS = {**BOUNDS, "log_e": (math.log(1e-6), math.inf)}
RESAMPLES = 400
_STEPS = 300
_PATIENCE = 12
"""Steps without a gain after which a fit is at its minimum."""


@dataclasses.dataclass(frozen=True)
class Runs:
    """Runs of one field; an entry for each."""

    once: np.ndarray
    shared: np.ndarray
    repeats: np.ndarray
    tokens: np.ndarray
    loss: np.ndarray

    @property
    def cells(self) -> np.ndarray:
        """The number of each run's cell: all but the seed."""
        columns = np.stack([self.once, self.shared, self.repeats, self.tokens], axis=1)
        return np.unique(columns, axis=0, return_inverse=True)[1].ravel()


@dataclasses.dataclass(frozen=True)
class Fit:
    """`values` are A, B, E, alpha, beta, phi; a term that the runs cannot show is 0."""

    values: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    warnings: tuple[str, ...]
    residuals: tuple[float, ...]
    """Of log L, for each run."""

    def loss(self, once: Any, shared: Any, repeats: Any, tokens: Any) -> Any:
        v = self.values
        size = self.effective(once, shared, repeats)
        return v["E"] + v["A"] * size ** -v["alpha"] + v["B"] * np.asarray(tokens) ** -v["beta"]

    def effective(self, once: Any, shared: Any, repeats: Any) -> Any:
        return np.asarray(once) + np.asarray(repeats, float) ** self.values["phi"] * shared

    def size_for(self, loss: float, tokens: float) -> float | None:
        """The effective parameters that reach a loss; None where none do."""
        v = self.values
        left = loss - v["E"] - v["B"] * tokens ** -v["beta"]
        return (v["A"] / left) ** (1 / v["alpha"]) if left > 0 and v["alpha"] > 0 else None

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "Fit":
        """From what `to_dict` gave, read from JSON."""
        ends = {name: (low, high) for name, (low, high) in content["intervals"].items()}
        return cls(
            dict(content["values"]), ends, tuple(content["warnings"]), tuple(content["residuals"])
        )

    def to_dict(self) -> dict[str, Any]:
        ends = {key: list(each) for key, each in self.intervals.items()}
        return {**dataclasses.asdict(self), "intervals": ends}


def fit(runs: Runs, *, delta: float = DELTA, resamples: int = RESAMPLES, seed: int = 0) -> Fit:
    """The law that fits best, with 95 % intervals (none where `resamples` is 0)."""
    problem, warnings = _Problem.of(runs, delta)
    best = problem.search()
    values = problem.named(best[None])
    intervals: dict[str, tuple[float, float]] = {}
    if resamples:
        weights = _resample(runs.cells, resamples, np.random.default_rng(seed))
        refitted = problem.named(problem.refine(np.tile(best, (resamples, 1)), weights))
        for name, found in refitted.items():
            low, high = np.quantile(found, [0.025, 0.975])
            intervals[name] = float(low), float(high)
        warnings += _undetermined(problem, intervals)
    return Fit(
        {name: float(found[0]) for name, found in values.items()},
        intervals,
        tuple(warnings),
        tuple(problem.residuals(best[None])[0].tolist()),
    )


def _undetermined(problem: "_Problem", intervals: Mapping[str, tuple[float, float]]) -> list[str]:
    said = []
    for name in _EXPONENTS:
        if name not in problem.free:
            continue
        (low, high), (least, most) = intervals[name], BOUNDS[name]
        wide = high - low > 1 if name == "phi" else high > 3 * low
        if wide or low <= least + 1e-6 or high >= most - 1e-6:
            said.append(
                f"the runs do not determine {name}: anything from {low:.2f} to {high:.2f} fits"
            )
    return said


def _resample(cells: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """How often each run counts in each resample: cells drawn with replacement, and within each
    draw its runs drawn with replacement."""
    groups = [np.flatnonzero(cells == cell) for cell in range(cells.max() + 1)]
    weights = np.zeros((count, len(cells)))
    for row in weights:
        for cell in random.integers(len(groups), size=len(groups)):
            own = groups[cell]
            np.add.at(row, own[random.integers(len(own), size=len(own))], 1.0)
    return weights


@dataclasses.dataclass(frozen=True)
class _Problem:
    """The data, and which of the six parameters they can show anything about."""

    runs: Runs
    free: tuple[str, ...]
    delta: float
    log_n: float
    """What N and D are divided by, as logarithms."""
    log_d: float

    @classmethod
    def of(cls, runs: Runs, delta: float) -> tuple["_Problem", list[str]]:
        total = runs.once + runs.shared
        free, warnings = set(NAMES), []
        sizes = np.unique(np.stack([runs.once, runs.shared, runs.repeats]), axis=1).shape[1]
        if sizes < 2:
            free -= {"log_a", "alpha", "phi"}
            warnings.append("all runs have one size: alpha and phi are left out")
        tokens = len(np.unique(runs.tokens))
        if tokens < 2:
            free -= {"log_b", "beta"}
            warnings.append("all runs have one number of tokens: beta is left out")
        for number, what, exponent in (
            (sizes, "sizes", "alpha"),
            (tokens, "numbers of tokens", "beta"),
        ):
            if number == 2:
                free -= {"log_e"}
                warnings.append(f"two {what} cannot tell {exponent} from E: E is left out")
        looped = np.unique(runs.repeats[runs.shared > 0])
        if len(looped) < 2 and "phi" in free:
            free -= {"phi"}
            if len(looped):
                warnings.append("all runs repeat their weights equally often: phi is left out")
        if len(np.unique(runs.cells)) <= len(free):
            warnings.append(f"{len(np.unique(runs.cells))} cells for {len(free)} parameters")
        order = tuple(name for name in NAMES if name in free)
        centres = (float(np.log(each).mean()) for each in (total, runs.tokens))
        return cls(runs, order, delta, *centres), warnings

    def _terms(self, p: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """log L `batch runs`, the share of each of three terms in L, log N, and dlog N / dphi."""
        r, at = self.runs, self._at(p)
        shared = r.repeats[None] ** at["phi"] * r.shared[None]
        size = r.once[None] + shared
        log_n = np.log(size) - self.log_n
        by_phi = shared / size * np.log(r.repeats)[None]
        log_d = np.log(r.tokens)[None] - self.log_d
        terms = np.stack(
            [
                at["log_a"] - at["alpha"] * log_n,
                at["log_b"] - at["beta"] * log_d,
                at["log_e"] + 0.0 * log_n,
            ]
        )
        top = terms.max(axis=0)
        parts = np.exp(terms - top)
        total = parts.sum(axis=0)
        return top + np.log(total), parts / total, log_n, by_phi

    def _at(self, p: np.ndarray) -> dict[str, np.ndarray]:
        fixed = {"log_a": -np.inf, "log_b": -np.inf, "log_e": -np.inf, "phi": 0.0}
        columns = {name: p[:, i : i + 1] for i, name in enumerate(self.free)}
        return {
            name: columns.get(name, np.full((len(p), 1), fixed.get(name, 1.0))) for name in NAMES
        }

    def residuals(self, p: np.ndarray) -> np.ndarray:
        return self._terms(p)[0] - np.log(self.runs.loss)[None]

    def _derivatives(self, p: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Residuals `batch runs`, their gradients `batch runs free`, and their second derivatives
        `batch runs free free`."""
        log_loss, shares, log_n, by_phi = self._terms(p)
        alpha = self._at(p)["alpha"]
        log_d = np.log(self.runs.tokens)[None] - self.log_d
        by = (
            {"log_a": 1.0, "alpha": -log_n, "phi": -alpha * by_phi},
            {"log_b": 1.0, "beta": -log_d},
            {"log_e": 1.0},
        )
        gradient = np.zeros((*log_loss.shape, len(self.free)))
        hessian = np.zeros((*gradient.shape, len(self.free)))
        for share, slopes in zip(shares, by, strict=True):
            columns = [np.broadcast_to(slopes.get(name, 0.0), share.shape) for name in self.free]
            own = np.stack(columns, axis=-1)
            gradient += share[..., None] * own
            hessian += (share[..., None] * own)[..., None] * own[..., None, :]
        hessian -= gradient[..., None] * gradient[..., None, :]
        if "phi" in self.free:
            i, j = self.free.index("alpha"), self.free.index("phi")
            part = shares[0] * by_phi
            hessian[..., i, j] -= part
            hessian[..., j, i] -= part
            hessian[..., j, j] -= alpha * part * (np.log(self.runs.repeats)[None] - by_phi)
        return log_loss - np.log(self.runs.loss)[None], gradient, hessian

    def _huber(self, residuals: np.ndarray) -> np.ndarray:
        far = np.abs(residuals)
        inside = far <= self.delta
        return np.where(inside, 0.5 * residuals**2, self.delta * (far - 0.5 * self.delta))

    def search(self) -> np.ndarray:
        """The best of many starts."""
        starts = self._starts()
        found = self.refine(starts, np.ones((len(starts), len(self.runs.loss))))
        return found[self._huber(self.residuals(found)).sum(axis=1).argmin()]

    def _starts(self) -> np.ndarray:
        least = float(self.runs.loss.min())
        mean = float(self.runs.loss.mean())
        choices = {
            "share": (0.3, 0.6, 0.9),
            "split": (0.25, 0.75),
            "alpha": (0.1, 0.4, 1.0),
            "beta": (0.1, 0.4, 1.0),
            "phi": (0.0, 0.5, 1.0),
        }
        points = np.stack(np.meshgrid(*choices.values(), indexing="ij"), axis=-1).reshape(-1, 5)
        share, split, alpha, beta, phi = points.T
        rest = mean - share * least
        columns = {
            "log_a": np.log(rest * split),
            "log_b": np.log(rest * (1 - split)),
            "log_e": np.log(share * least),
            "alpha": alpha,
            "beta": beta,
            "phi": phi,
        }
        return np.unique(np.stack([columns[name] for name in self.free], axis=1), axis=0)

    def refine(self, p: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Every row of `p` to a minimum of the Huber loss with its row of weights."""
        p = np.clip(p, *self._ends)
        damping, idle = np.full(len(p), 1e-3), np.zeros(len(p), int)
        cost = (weights * self._huber(self.residuals(p))).sum(axis=1)
        for _ in range(_STEPS):
            (rows,) = np.nonzero(idle < _PATIENCE)
            if not len(rows):
                break
            tried, after = self._step(p[rows], weights[rows], damping[rows])
            gain = cost[rows] - after
            better = gain > 0
            p[rows] = np.where(better[:, None], tried, p[rows])
            cost[rows] = np.where(better, after, cost[rows])
            damping[rows] = np.clip(
                np.where(better, damping[rows] / 5, damping[rows] * 4), 1e-12, 1e6
            )
            idle[rows] = np.where(gain > 1e-13 * after, 0, idle[rows] + 1)
        return p

    @property
    def _ends(self) -> np.ndarray:
        return np.array([_BOUNDS.get(name, (-np.inf, np.inf)) for name in self.free]).T

    def _step(
        self, p: np.ndarray, weights: np.ndarray, damping: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The better of a Gauss-Newton step, which finds the valley, and a Newton step, which goes
        along it; and the costs there. What pushes against a bound stays at it."""
        (low, high), eye = self._ends, np.eye(len(self.free))
        residuals, jacobian, hessian = self._derivatives(p)
        slope = weights * np.clip(residuals, -self.delta, self.delta)
        gradient = np.einsum("br,bri->bi", slope, jacobian)
        held = ((p <= low) & (gradient > 0)) | ((p >= high) & (gradient < 0))
        moves = ~held[:, :, None] & ~held[:, None, :]
        inside = weights * (np.abs(residuals) <= self.delta)
        rescaled = weights * self.delta / np.maximum(np.abs(residuals), self.delta)
        gauss = np.einsum("br,bri,brj->bij", rescaled, jacobian, jacobian)
        newton = np.einsum("br,bri,brj->bij", inside, jacobian, jacobian)
        newton += np.einsum("br,brij->bij", slope, hessian)
        scale = np.einsum("bii->bi", gauss) + 1e-12
        best, cost = p, np.full(len(p), np.inf)
        for curvature in (gauss, newton):
            damped = curvature + damping[:, None, None] * scale[:, None, :] * eye
            matrix = np.where(moves, damped, eye)
            step = np.linalg.solve(matrix, np.where(held, 0.0, gradient)[..., None])[..., 0]
            tried = np.clip(p - np.clip(step, -2.0, 2.0), low, high)
            after = (weights * self._huber(self.residuals(tried))).sum(axis=1)
            best = np.where((after < cost)[:, None], tried, best)
            cost = np.fmin(after, cost)
        return best, cost

    def named(self, p: np.ndarray) -> dict[str, np.ndarray]:
        """A, B, E and the exponents, of N and D as they are counted."""
        at = {name: each[:, 0] for name, each in self._at(p).items()}
        made = {
            "A": np.exp(at["log_a"] + at["alpha"] * self.log_n),
            "B": np.exp(at["log_b"] + at["beta"] * self.log_d),
            "E": np.exp(at["log_e"]),
        }
        return made | {
            name: at[name] if name in self.free else 0.0 * at[name] for name in _EXPONENTS
        }


def runs_of(points: Sequence[Mapping[str, Any]]) -> Runs:
    """From plain points, as `scaling.json` has them."""
    columns = [
        np.array([float(point[key]) for point in points])
        for key in ("once", "shared", "repeats", "tokens", "loss")
    ]
    return Runs(*columns)


def fitted(points: Sequence[Mapping[str, Any]], reference: str) -> dict[str, Any]:
    """The content of `scaling.json`: the points, the law of every model, and what the others need
    to reach the reference's loss."""
    labels = list(dict.fromkeys(str(point["label"]) for point in points))
    laws = {
        label: fit(runs_of([point for point in points if point["label"] == label]))
        for label in labels
    }
    return {
        "points": list(points),
        "fits": {label: law.to_dict() for label, law in laws.items()},
        "reference": reference,
        "needs": needs(points, laws, reference) if reference in laws else [],
    }


def needs(
    points: Sequence[Mapping[str, Any]], fits: Mapping[str, Fit], reference: str
) -> list[dict[str, Any]]:
    """The parameters and FLOPs at which each other model has the reference's fitted loss, on as
    many tokens and at each number of repeats; None where no size has it.

    Proportions (which part is shared, FLOPs by parameters) are those of the runs at that number of
    repeats; `beyond` says by how much the size is outside theirs.
    """
    tokens = float(max(point["tokens"] for point in points))
    sizes = {_size(p): p for p in points if p["label"] == reference and p["tokens"] == tokens}
    found = []
    for size, of in sorted(sizes.items()):
        loss = float(fits[reference].loss(of["once"], of["shared"], of["repeats"], tokens))
        for label, law in fits.items():
            if label == reference:
                continue
            for repeats in sorted({p["repeats"] for p in points if p["label"] == label}):
                own = [p for p in points if (p["label"], p["repeats"]) == (label, repeats)]
                line = {"label": label, "repeats": repeats, "tokens": tokens, "loss": loss}
                line |= {"reference_parameters": size, "reference_flops": of["flops"]}
                found.append({**line, **_needed(own, law, loss, tokens)})
    return found


def _size(point: Mapping[str, Any]) -> float:
    return float(point["once"] + point["shared"])


def _needed(
    own: Sequence[Mapping[str, Any]], law: Fit, loss: float, tokens: float
) -> dict[str, float | None]:
    largest = max(own, key=_size)
    worth = law.effective(largest["once"], largest["shared"], largest["repeats"]) / _size(largest)
    effective = law.size_for(loss, tokens)
    if effective is None:
        return {"parameters": None, "flops": None, "beyond": None}
    parameters = float(effective / worth)
    sizes = np.array([_size(point) for point in own])
    per_token = np.array([point["flops"] / point["tokens"] for point in own])
    if len(np.unique(sizes)) > 1:
        slope, start = np.polyfit(np.log(sizes), np.log(per_token), 1)
        flops = math.exp(start + slope * math.log(parameters)) * tokens
    else:
        flops = float(per_token.mean() * parameters / sizes[0]) * tokens
    beyond = max(parameters / sizes.max(), sizes.min() / parameters, 1.0)
    return {"parameters": parameters, "flops": flops, "beyond": beyond}
