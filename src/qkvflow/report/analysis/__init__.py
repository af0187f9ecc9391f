"""The page and the figures of an analysis, from its saved arrays alone."""

from qkvflow.report.analysis.build import AnalysisPaths, build_analysis

__all__ = ["AnalysisPaths", "build_analysis"]
