"""State spaces: transitions and half-lives along depth."""

from qkvflow.report.analysis.content import Content
from qkvflow.report.analysis.parts import Section, bundle, lines
from qkvflow.report.analysis.sections import SECTIONS
from qkvflow.report.charts.description import Figure, Plot


@SECTIONS.register("state-space")
def section(content: Content) -> Section:
    layers = content.groups("state-space", "layers")

    def panels(key: str, unit: str, *, log: bool = False) -> tuple[Plot, ...]:
        made = []
        for name, each in layers.items():
            one = "head" if "by_token" in each else "state"
            names = [f"{one} {i + 1}" for i in range(each[key].shape[1])]
            made.append(lines(name, "t", unit, bundle(each["ts"], each[key].T, names), log=log))
        return tuple(made)

    told = "One line per state; per head in a selective layer, median over the tokens of the text."
    return Section(
        "state-space",
        "State spaces",
        "How long the state space layers remember, along depth. Why look: a text longer than the "
        "longest half-life is read in pieces, whatever the context.",
        (
            Figure(
                "state_space_half_lives",
                "Memory half-life",
                f"After so many tokens half of a state is forgotten (logarithmic). {told}",
                panels("half_lives", "tokens", log=True),
            ),
            Figure(
                "state_space_eigenvalues",
                "Eigenvalues of the discrete transition",
                f"exp(ΔA): 1 keeps everything, 0 nothing. {told}",
                panels("eigenvalues", "eigenvalue"),
            ),
        ),
    )
