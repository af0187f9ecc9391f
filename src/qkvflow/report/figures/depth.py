"""Loss of trained models run with another number of depth steps."""

from qkvflow.report import numbers
from qkvflow.report.charts.description import Figure, Plot, Series, values
from qkvflow.report.charts.scales import axis
from qkvflow.report.content import DepthLoss, Model, Report


def depth(report: Report, number: int) -> Figure | None:
    series = tuple(
        _series(model, scheme, own)
        for model in report.of(number)
        for scheme in dict.fromkeys(each.scheme for each in model.evaluations)
        if (own := [e for e in model.evaluations if e.scheme == scheme and e.num_steps is not None])
    )
    if not series:
        return None
    steps = [x for s in series for x in s.x if x is not None]
    y = axis("loss, nats per token", [v for s in series for v in (*s.low, *s.high)], digits=4)
    x = axis("depth steps", steps, log=True, pad=0.05, marks=steps)
    return Figure(
        f"depth-{number}",
        f"Loss at other depths{report.suffix(number)}",
        "The trained models run with another number of depth steps; the band is the range over"
        " seeds, the ring marks the steps trained with.",
        (Plot("", x, y, series, height=27.0, ends=True),),
        legend=True,
    )


def _series(model: Model, scheme: str, own: list[DepthLoss]) -> Series:
    trained = model.config.get("num_steps")
    return Series(
        model.label,
        model.index,
        values([each.num_steps for each in own]),
        values([each.mean for each in own]),
        values([each.low for each in own]),
        values([each.high for each in own]),
        look="dots",
        rings=tuple(i for i, each in enumerate(own) if each.num_steps == trained),
        tips=tuple(
            ((f"{e.num_steps} steps, {scheme}", f"{numbers.loss(e.mean)} nats"),) for e in own
        ),
    )
