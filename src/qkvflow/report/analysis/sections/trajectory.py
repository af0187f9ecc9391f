"""The path of the states: sizes, steps, turns, errors, a map of it, and the logit lens."""

import numpy as np

from qkvflow.report.analysis.charts import (
    Cells,
    Cloud,
    LinePanel,
    Lines,
    Plane,
    Section,
    Series,
    band,
    visible,
)
from qkvflow.report.analysis.content import Content
from qkvflow.report.analysis.sections import SECTIONS


@SECTIONS.register("trajectory")
def section(content: Content) -> Section:
    arrays = content.arrays("trajectory")
    ts = arrays["ts"]
    ends = ts[1:]
    panels = (
        LinePanel("norm of the state", (band("norm", ts, arrays["norm"]),)),
        LinePanel("length of a step", (band("step", ends, arrays["step_size"]),)),
        LinePanel("turning angle, degrees", (band("angle", ends[1:], arrays["turning"]),)),
        LinePanel(
            "local error, % of the step", (band("error", ends, 100 * arrays["local_error"]),)
        ),
    )
    panels = tuple(each for each in panels if each.series[0].x.size)
    placed, shares = arrays["projection"], 100 * arrays["explained"]
    lens = Lines(
        "trajectory_settling",
        "When the prediction settles",
        "KL divergence of the final prediction from the one at t, in nats, and the entropy of the "
        "prediction at t: median and middle 80 % of the tokens.",
        "t",
        "nats",
        (
            LinePanel(
                "",
                (
                    band("divergence", ts, arrays["lens/divergence"]),
                    band("entropy", ts, arrays["lens/entropy"]),
                ),
            ),
        ),
    )
    agreement = Lines(
        "trajectory_agreement",
        "How often it is already the final one",
        "The share of positions whose most likely next token at t is the final one.",
        "t",
        "share",
        (LinePanel("", (Series("agreement", ts, arrays["lens/agreement"]),)),),
        dots=True,
    )
    texts = arrays["lens/texts"][..., 0]
    return Section(
        "trajectory",
        "Trajectories",
        "The way of the hidden states from the embedding (t = 0) to the last state (t = 1).",
        (
            Lines(
                "trajectory_path",
                "Along depth",
                "Median over the tokens, and the range of the middle 80 %. The local error "
                "compares one step with two half steps from the same state.",
                "t",
                "",
                panels,
            ),
            Plane(
                "trajectory_map",
                "A map of the paths",
                "One path per token, coloured by t, in the two directions in which the states vary "
                f"most ({shares[0]:.0f} % and {shares[1]:.0f} % of the variance).",
                "first direction",
                "second direction",
                (
                    Cloud(
                        "",
                        placed[..., 0].T,
                        placed[..., 1].T,
                        np.broadcast_to(ts, placed.shape[1::-1]),
                        tuple(visible(piece) for piece in content.pieces),
                    ),
                ),
                equal=False,
            ),
            Cells(
                "trajectory_lens",
                "Logit lens",
                "The most likely next token after each token of the text, if the model stopped at "
                "t. The stronger the colour, the more probable.",
                tuple(visible(piece) for piece in content.pieces),
                tuple(f"{t:.2f}" for t in ts),
                np.vectorize(visible, otypes=[object])(texts),
                arrays["lens/probabilities"][..., 0],
            ),
            lens,
            agreement,
        ),
    )
