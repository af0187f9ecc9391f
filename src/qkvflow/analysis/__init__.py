"""Looking inside a trained model: every analysis works for every field, block and scheme.

Add one: a file here with a function of a model (and a text), a dataclass of arrays for its answer,
and an `Analysis` registered in `ANALYSES`. On the page its arrays are shown as lines over depth,
unless a file in `qkvflow.report.analysis.sections` shows them otherwise.
"""

from qkvflow.analysis.base import AbstractResult, Analysis, Subject, depths_of, to_arrays
from qkvflow.analysis.lyapunov import Lyapunov, lyapunov
from qkvflow.analysis.parts.exponents import Exponents, exponents, kaplan_yorke
from qkvflow.analysis.parts.flow import DepthFlow, depth_flow, in_steps
from qkvflow.analysis.parts.saving import analyse, choose
from qkvflow.analysis.parts.trend import Trend, trend
from qkvflow.analysis.spectra import Spectra, Spectrum, spectra
from qkvflow.analysis.state_space import StateSpaces, lacks_state_space, state_space
from qkvflow.analysis.trajectory import Trajectory, trajectory
from qkvflow.analysis.weights import WeightsOverDepth, weights_over_depth
from qkvflow.zoo.registry import ANALYSES

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
