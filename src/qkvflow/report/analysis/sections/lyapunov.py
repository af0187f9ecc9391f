"""Lyapunov exponents, how they come about along depth, and the text by sensitivity."""

import numpy as np

from qkvflow.report.analysis.charts import LinePanel, Lines, Section, Series, Words, bundle
from qkvflow.report.analysis.content import Content
from qkvflow.report.analysis.sections import SECTIONS


@SECTIONS.register("lyapunov")
def section(content: Content) -> Section:
    arrays = content.arrays("lyapunov")
    values, growth = arrays["exponents"], arrays["growth"]
    k, position = len(values), int(arrays["position"])
    seen = arrays["sensitivity"]
    # Logarithmic: sensitivities differ by factors. Later tokens cannot reach the position at all.
    reached = seen[: position + 1]
    logs = np.log10(np.maximum(seen, 1e-3 * max(reached.max(), 1e-30)))
    span = np.ptp(logs[: position + 1])
    shades = np.clip((logs - logs[: position + 1].min()) / (span or 1.0), 0.0, 1.0)
    shades[position + 1 :] = 0.0
    ts = np.linspace(0.0, 1.0, len(growth) + 1)
    along = np.concatenate([np.zeros((1, k)), np.cumsum(growth, axis=0)]).T
    tokens = np.arange(1, len(seen) + 1)
    own = np.exp(arrays["own_exponents"])
    return Section(
        "lyapunov",
        "Lyapunov exponents",
        "How fast small perturbations of the whole text's states grow or fade from t = 0 to t = 1, "
        "the tokens acting on each other.",
        (
            Words(
                "lyapunov_tokens",
                f"What the state at token {position + 1} is sensitive to",
                "The stronger the colour of a token, the more a small random change of its "
                "embedding changes the final state at the outlined token (logarithmic).",
                content.pieces,
                seen,
                shades,
                position,
                "times",
            ),
            Lines(
                "lyapunov_exponents",
                "The exponents",
                f"The leading {k} of {int(arrays['size'])}: the logarithms of the factors by which "
                "the fastest growing perturbations grow.",
                "number",
                "exponent",
                (LinePanel("", (Series("exponent", np.arange(1, k + 1), values),)),),
                dots=True,
            ),
            Lines(
                "lyapunov_growth",
                "Growth along depth",
                "The logarithm of the length of each of these perturbations, from t = 0 on.",
                "t",
                "log growth",
                (LinePanel("", bundle(ts, along, [f"exponent {i + 1}" for i in range(k)])),),
            ),
            Lines(
                "lyapunov_per_token",
                "Token by token",
                "Sensitivity as above; the largest growth of any perturbation of that token, at "
                "the outlined position; and the growth within the token's own block of the "
                "Jacobian alone, the quantity of Tong et al., as if tokens did not act on each "
                "other.",
                "token",
                "growth factor",
                (
                    LinePanel(
                        "",
                        (
                            Series("random", tokens, _positive(seen)),
                            Series("largest", tokens, _positive(arrays["largest"])),
                            Series("own block", tokens, own),
                        ),
                    ),
                ),
                log=True,
                dots=True,
            ),
        ),
    )


def _positive(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, values, np.nan)
