"""Statistics on records: summaries, tests, verdicts (`docs/statistics.md` has every field)."""

from qkvflow.statistics.compare import compare_pairs
from qkvflow.statistics.efficiency import pareto, time_to_threshold
from qkvflow.statistics.files import write_statistics
from qkvflow.statistics.pairing import evaluated_on
from qkvflow.statistics.summary import summarise

__all__ = [
    "compare_pairs",
    "evaluated_on",
    "pareto",
    "summarise",
    "time_to_threshold",
    "write_statistics",
]
