"""All analyses, in the order in which they are told."""

from qkvflow.analysis.base import Analysis
from qkvflow.analysis.lyapunov import lyapunov
from qkvflow.analysis.spectra import spectra
from qkvflow.analysis.state_space import lacks_state_space, state_space
from qkvflow.analysis.trajectory import trajectory
from qkvflow.analysis.weights import weights_over_depth

ANALYSES = (
    Analysis("spectra", lambda subject: spectra(subject.model)),
    Analysis(
        "lyapunov",
        lambda subject: lyapunov(subject.model, subject.tokens, subject.num_exponents),
    ),
    Analysis("trajectory", lambda subject: trajectory(subject.model, subject.tokens)),
    Analysis("weights", lambda subject: weights_over_depth(subject.model)),
    Analysis(
        "state-space",
        lambda subject: state_space(subject.model, subject.tokens),
        lacks=lacks_state_space,
    ),
)
