"""What a model costs, and which models no other beats in both cost and loss."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import binomtest

from qkvflow.report.content import Model, Speed
from qkvflow.statistics import pareto

COSTS = {
    "params": "stored parameters",
    "flops": "training FLOPs",
    "seconds": "training seconds",
}


def cost(model: Model, axis: str) -> float | None:
    """Stored parameters, training FLOPs spent or seconds of training."""
    return {"params": model.params["total"], "flops": model.flops, "seconds": model.seconds}[axis]


def front(models: Sequence[Model], axis: str, metric: str) -> list[str]:
    """Labels on the Pareto front of cost and mean loss, by increasing cost."""
    known = [
        (model.label, x, y)
        for model in models
        if (x := cost(model, axis)) is not None and (y := model.metric(metric)["mean"]) is not None
    ]
    return [known[i][0] for i in pareto([(x, y) for _, x, y in known])]


def fastest(models: Sequence[Model], alpha: float) -> str | None:
    """The model that its rounds show to be faster than every other one that was measured.

    Whatever else the machine does in a round slows all models of that round, so rounds are paired.
    The claim holds if it holds against each of the others: no correction for their number. With
    five rounds or fewer no order of them reaches 5 %, and nothing is called fastest.
    """
    timed = [(m.label, m.speed) for m in models if m.speed is not None and m.speed.measured]
    for label, own in timed:
        others = [speed for name, speed in timed if name != label]
        if others and all(_faster(own, other, alpha) for other in others):
            return label
    return None


def _faster(a: Speed, b: Speed, alpha: float) -> bool:
    """The sign test of paired rounds, two-sided: one slow round has no more weight than another."""
    if a.session is None or a.session != b.session or len(a.rounds) != len(b.rounds):
        return False
    differences = np.subtract(a.rounds, b.rounds)
    lower, higher = int((differences < 0).sum()), int((differences > 0).sum())
    return lower > higher and float(binomtest(lower, lower + higher).pvalue) <= alpha
