"""Looking inside a trained model: every analysis works for every field, block and scheme.

Add one: a file here with a function of a model (and a text), a dataclass of arrays for its answer,
and an entry in `ANALYSES`; its page and figures are a file in `qkvflow.report.analysis`.
"""

from qkvflow.analysis.base import AbstractResult, Analysis, Subject, depths_of, to_arrays
from qkvflow.analysis.exponents import Exponents, exponents, kaplan_yorke
from qkvflow.analysis.flow import DepthFlow, depth_flow, in_steps
from qkvflow.analysis.lyapunov import Lyapunov, lyapunov
from qkvflow.analysis.members import ANALYSES
from qkvflow.analysis.saving import analyse, choose
from qkvflow.analysis.spectra import Spectra, Spectrum, spectra
from qkvflow.analysis.state_space import StateSpaces, lacks_state_space, state_space
from qkvflow.analysis.trajectory import Trajectory, trajectory
from qkvflow.analysis.trend import Trend, trend
from qkvflow.analysis.weights import WeightsOverDepth, weights_over_depth

__all__ = [
    "ANALYSES",
    "AbstractResult",
    "Analysis",
    "DepthFlow",
    "Exponents",
    "Lyapunov",
    "Spectra",
    "Spectrum",
    "StateSpaces",
    "Subject",
    "Trajectory",
    "Trend",
    "WeightsOverDepth",
    "analyse",
    "choose",
    "depth_flow",
    "depths_of",
    "exponents",
    "in_steps",
    "kaplan_yorke",
    "lacks_state_space",
    "lyapunov",
    "spectra",
    "state_space",
    "to_arrays",
    "trajectory",
    "trend",
    "weights_over_depth",
]
