"""Lyapunov exponents, how they come about along depth, and the text by sensitivity."""

import numpy as np

from qkvflow.report import numbers
from qkvflow.report.analysis.content import Content
from qkvflow.report.analysis.parts import Section, bundle, line, lines, visible
from qkvflow.report.analysis.sections import SECTIONS
from qkvflow.report.charts.description import Figure, Words, values


@SECTIONS.register("lyapunov")
def section(content: Content) -> Section:
    arrays = content.arrays("lyapunov")
    exponents, growth = arrays["exponents"], arrays["growth"]
    k = len(exponents)
    ts = np.linspace(0.0, 1.0, len(growth) + 1)
    along = np.concatenate([np.zeros((1, k)), np.cumsum(growth, axis=0)]).T
    tokens = np.arange(1, len(arrays["sensitivity"]) + 1)
    per_token = [
        line("random", 0, tokens, _positive(arrays["sensitivity"]), "dots"),
        line("largest", 1, tokens, _positive(arrays["largest"]), "dots"),
        line("own block", 2, tokens, np.exp(arrays["own_exponents"]), "dots"),
    ]
    shown = [line("exponent", 0, np.arange(1, k + 1), exponents, "dots")]
    return Section(
        "lyapunov",
        "Lyapunov exponents",
        "How fast small perturbations of the whole text's states grow or fade from t = 0 to t = 1, "
        "the tokens acting on each other. Why look: to see which tokens a prediction hangs on, and "
        "whether depth amplifies small errors such as rounding. Growth by a finite factor over a "
        "depth that ends is not chaos.",
        (
            Figure(
                "lyapunov_tokens",
                f"What the state at token {int(arrays['position']) + 1} is sensitive to",
                "The stronger the colour of a token, the more a small random change of its "
                "embedding changes the final state at the outlined token (logarithmic).",
                (_words(content),),
            ),
            Figure(
                "lyapunov_exponents",
                "The exponents",
                f"The leading {k} of {int(arrays['size'])}: the logarithms of the factors by which "
                "the fastest growing perturbations grow.",
                (lines("", "number", "exponent", shown),),
            ),
            Figure(
                "lyapunov_growth",
                "Growth along depth",
                "The logarithm of the length of each of these perturbations, from t = 0 on.",
                (
                    lines(
                        "",
                        "t",
                        "log growth",
                        bundle(ts, along, [f"exponent {i + 1}" for i in range(k)]),
                    ),
                ),
            ),
            Figure(
                "lyapunov_per_token",
                "Token by token",
                "Sensitivity as above; the largest growth of any perturbation of that token, at "
                "the outlined position; and the growth within the token's own block of the "
                "Jacobian alone, the quantity of Tong et al., as if tokens did not act on each "
                "other.",
                (lines("", "token", "growth factor", per_token, log=True),),
            ),
        ),
    )


def _words(content: Content) -> Words:
    arrays = content.arrays("lyapunov")
    seen, position = arrays["sensitivity"], int(arrays["position"])
    # Logarithmic: sensitivities differ by factors. Later tokens cannot reach the position at all.
    reached = seen[: position + 1]
    logs = np.log10(np.maximum(seen, 1e-3 * max(reached.max(), 1e-30)))
    low, span = logs[: position + 1].min(), np.ptp(logs[: position + 1])
    shades = np.clip((logs - low) / (span or 1.0), 0.0, 1.0)
    shades[position + 1 :] = 0.0
    times = [f"{numbers.three(float(each))} times" for each in seen]
    pieces = tuple(visible(piece) for piece in content.pieces)
    return Words(
        pieces,
        tuple(i for i, piece in enumerate(content.pieces) if "\n" in piece),
        values(shades),
        tuple(f"token {i + 1}, {piece}: {times[i]}" for i, piece in enumerate(pieces)),
        position,
        (times[int(np.argmin(reached))], times[int(np.argmax(reached))]),
    )


def _positive(array: np.ndarray) -> np.ndarray:
    return np.where(array > 0, array, np.nan)
