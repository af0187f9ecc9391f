"""Statistics on records: summaries, tests, verdicts (`docs/statistics.md` has every field)."""

from qkvflow.experiment.statistics.compare import compare_pairs
from qkvflow.experiment.statistics.efficiency import pareto, time_to_threshold
from qkvflow.experiment.statistics.files import write_statistics
from qkvflow.experiment.statistics.pairing import evaluated_on
from qkvflow.experiment.statistics.summary import summarise

__all__ = [
    "compare_pairs",
    "evaluated_on",
    "pareto",
    "summarise",
    "time_to_threshold",
    "write_statistics",
]
