"""State spaces: transitions and half-lives along depth."""

from qkvflow.report.analysis.charts import LinePanel, Lines, Section, bundle
from qkvflow.report.analysis.content import Content
from qkvflow.report.analysis.sections import SECTIONS


@SECTIONS.register("state-space")
def section(content: Content) -> Section:
    layers = content.groups("state-space", "layers")

    def panels(key: str) -> tuple[LinePanel, ...]:
        made = []
        for name, each in layers.items():
            one = "head" if "by_token" in each else "state"
            names = [f"{one} {i + 1}" for i in range(each[key].shape[1])]
            made.append(LinePanel(name, bundle(each["ts"], each[key].T, names)))
        return tuple(made)

    told = "One line per state; per head in a selective layer, median over the tokens of the text."
    return Section(
        "state-space",
        "State spaces",
        "How long the state space layers remember, along depth.",
        (
            Lines(
                "state_space_half_lives",
                "Memory half-life",
                f"After so many tokens half of a state is forgotten (logarithmic). {told}",
                "t",
                "tokens",
                panels("half_lives"),
                log=True,
            ),
            Lines(
                "state_space_eigenvalues",
                "Eigenvalues of the discrete transition",
                f"exp(ΔA): 1 keeps everything, 0 nothing. {told}",
                "t",
                "eigenvalue",
                panels("eigenvalues"),
            ),
        ),
    )
