"""One file per analysis, from its arrays to what is shown."""

from collections.abc import Callable

from qkvflow.report.analysis.content import Content
from qkvflow.report.analysis.parts import Section
from qkvflow.report.analysis.sections import lyapunov, spectra, state_space, trajectory, weights

SECTIONS: dict[str, Callable[[Content], Section]] = {
    "spectra": spectra.section,
    "lyapunov": lyapunov.section,
    "trajectory": trajectory.section,
    "weights": weights.section,
    "state-space": state_space.section,
}
