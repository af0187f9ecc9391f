"""Cost against loss: the Pareto front, and the cost of reaching a loss."""

import math
from collections.abc import Sequence

from qkvflow.errors import unknown
from qkvflow.records import Curve, finite

AXES = ("seconds", "tokens", "step", "flops")


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points that no other dominates, by increasing first coordinate.

    Lower is better in both coordinates. A point dominates another if it is no worse in both and
    better in one, so equal points are on the front together. Points that are not finite are not.
    """
    usable = [i for i, point in enumerate(points) if all(math.isfinite(value) for value in point)]
    front: list[int] = []
    for i in sorted(usable, key=lambda index: tuple(points[index])):
        # In this order a point is dominated by the last one of the front or by none.
        last = tuple(points[front[-1]]) if front else None
        if last is None or points[i][1] < last[1] or tuple(points[i]) == last:
            front.append(i)
    return front


def time_to_threshold(
    curve: Curve, threshold: float, *, by: str = "seconds", flops_per_step: float | None = None
) -> float | None:
    """What it took until the validation loss first reached `threshold`, or None if it never did.

    Linear between evaluations. If the first evaluation is already there, its own cost is
    returned, an upper bound. `by` is one of `AXES`; `flops` needs `flops_per_step`.
    """
    if by not in AXES:
        raise unknown("cost axis", by, AXES)
    if by == "flops" and flops_per_step is None:
        raise ValueError("by='flops' needs flops_per_step")
    before: tuple[float, float] | None = None
    for line in curve.validation:
        loss = finite(line.get("loss"))
        cost = finite(line.get("step" if by == "flops" else by))
        if loss is None or cost is None:
            continue
        if by == "flops" and flops_per_step is not None:
            cost *= flops_per_step
        if loss <= threshold:
            if before is None:
                return cost
            earlier_cost, earlier_loss = before
            share = (earlier_loss - threshold) / (earlier_loss - loss)
            return earlier_cost + share * (cost - earlier_cost)
        before = (cost, loss)
    return None
