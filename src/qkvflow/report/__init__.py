"""The report of an experiment: tables, figures and one page, from records alone."""

from qkvflow.report.build import ReportPaths, build_report
from qkvflow.report.terminal import print_summary

__all__ = ["ReportPaths", "build_report", "print_summary"]
