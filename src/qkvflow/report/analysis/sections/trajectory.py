"""The path of the states: sizes, steps, turns, errors, a map of it, and the logit lens."""

import numpy as np

from qkvflow.report.analysis.content import Content
from qkvflow.report.analysis.parts import Section, band, line, lines, visible
from qkvflow.report.analysis.sections import SECTIONS
from qkvflow.report.charts.description import Cell, Figure, Grid, Plot, Series, values
from qkvflow.report.charts.scales import axis


@SECTIONS.register("trajectory")
def section(content: Content) -> Section:
    arrays = content.arrays("trajectory")
    ts = arrays["ts"]
    ends = ts[1:]
    along = {
        "norm of the state": (ts, arrays["norm"]),
        "length of a step": (ends, arrays["step_size"]),
        "turning angle, degrees": (ends[1:], arrays["turning"]),
        "local error, % of the step": (ends, 100 * arrays["local_error"]),
    }
    panels = tuple(
        lines(title, "t", "", [band(title, 0, t, seen)])
        for title, (t, seen) in along.items()
        if t.size
    )
    settling = [
        band("divergence", 0, ts, arrays["lens/divergence"]),
        band("entropy", 1, ts, arrays["lens/entropy"]),
    ]
    agreement = [line("agreement", 0, ts, arrays["lens/agreement"], "dots")]
    shares = 100 * arrays["explained"]
    return Section(
        "trajectory",
        "Trajectories",
        "The way of the hidden states from the embedding (t = 0) to the last state (t = 1). Why "
        "look: the local error says whether another number of steps is the same model, the lens "
        "how early a prediction is settled.",
        (
            Figure(
                "trajectory_path",
                "Along depth",
                "Median over the tokens, and the range of the middle 80 %. The local error "
                "compares one step with two half steps from the same state.",
                panels,
            ),
            Figure(
                "trajectory_map",
                "A map of the paths",
                "One path per token, coloured by t, in the two directions in which the states vary "
                f"most ({shares[0]:.0f} % and {shares[1]:.0f} % of the variance).",
                (_map(content, ts, arrays["projection"]),),
            ),
            Figure(
                "trajectory_lens",
                "Logit lens",
                "The most likely next token after each token of the text, if the model stopped at "
                "t. The stronger the colour, the more probable.",
                (_lens(content, ts),),
            ),
            Figure(
                "trajectory_settling",
                "When the prediction settles",
                "KL divergence of the final prediction from the one at t, in nats, and the entropy "
                "of the prediction at t: median and middle 80 % of the tokens.",
                (lines("", "t", "nats", settling),),
            ),
            Figure(
                "trajectory_agreement",
                "How often it is already the final one",
                "The share of positions whose most likely next token at t is the final one.",
                (lines("", "t", "share", agreement),),
            ),
        ),
    )


def _map(content: Content, ts: np.ndarray, placed: np.ndarray) -> Plot:
    """`placed` is `depth token 2`."""
    series = tuple(
        Series(
            f"token {i + 1}, {visible(piece)}",
            0,
            values(placed[:, i, 0]),
            values(placed[:, i, 1]),
            look="path",
            depth=values(ts),
        )
        for i, piece in enumerate(content.pieces)
    )
    x, y = (
        axis(label, placed[..., i].ravel().tolist(), pad=0.06)
        for i, label in enumerate(("first direction", "second direction"))
    )
    return Plot("", x, y, series, height=32.0)


def _lens(content: Content, ts: np.ndarray) -> Grid:
    arrays = content.arrays("trajectory")
    texts, probable = arrays["lens/texts"][..., 0], arrays["lens/probabilities"][..., 0]
    columns = tuple(visible(piece) for piece in content.pieces)
    cells = []
    for row, t in enumerate(ts):
        named = [visible(str(text)) for text in texts[row]]
        tips = [
            f"after {column} at t = {t:.2f}: {text}, p = {p:.3f}"
            for column, text, p in zip(columns, named, probable[row], strict=True)
        ]
        shades = [float(f"{p:.4g}") for p in probable[row]]
        cells.append(
            tuple(
                Cell((text,), shade=shade, tip=tip)
                for text, shade, tip in zip(named, shades, tips, strict=True)
            )
        )
    rows = tuple(f"{t:.2f}" for t in ts)
    return Grid("", columns, rows, tuple(cells), corner="t")
