"""The two files of an experiment's statistics."""

from collections.abc import Sequence
from pathlib import Path

from qkvflow.files import write_json
from qkvflow.records import Records
from qkvflow.statistics.compare import compare_pairs
from qkvflow.statistics.summary import summarise

SUMMARY_FILE = "statistics_summary.json"
TESTS_FILE = "significance_tests.json"


def write_statistics(
    experiment_dir: str | Path,
    records: Records,
    *,
    metric: str = "test",
    margin: float = 0.01,
    alpha: float = 0.05,
    pairs: Sequence[tuple[str, str, str]] | None = None,
) -> tuple[Path, Path]:
    """Write both files atomically and return their paths.

    `pairs`, as (name, label a, label b), are tested as a family of their own beside all pairs.
    """
    directory = Path(experiment_dir)
    all_pairs = compare_pairs(records, metric=metric, margin=margin, alpha=alpha)
    named = None
    if pairs:
        named = compare_pairs(records, metric=metric, margin=margin, alpha=alpha, pairs=pairs)
    tests = {"schema": 1, "all_pairs": all_pairs, "named_pairs": named}
    write_json(directory / SUMMARY_FILE, summarise(records))
    write_json(directory / TESTS_FILE, tests)
    return directory / SUMMARY_FILE, directory / TESTS_FILE
