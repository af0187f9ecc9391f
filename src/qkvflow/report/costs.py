"""What a model costs, and which models no other beats in both cost and loss."""

from collections.abc import Sequence

from qkvflow.report.content import Model
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
