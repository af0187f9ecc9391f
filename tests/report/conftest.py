"""One full report for all tests."""

from pathlib import Path

import pytest
from synthetic import PLAN, QUESTIONS, experiment

from qkvflow.report import ReportPaths, build, build_report


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> ReportPaths:
    """Eight models, five seeds, one failed run, questions and other depths, with all figures."""
    directory = experiment(
        tmp_path_factory.mktemp("full") / "study",
        plan={**PLAN, "questions": QUESTIONS},
        failed=[("hybrid", 3)],
        evaluations=True,
    )
    return build_report([directory])


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without PNG and PDF, for tests that look at something else."""
    monkeypatch.setattr(build, "save", lambda figures, directory: ())


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Where a test may put an experiment."""
    return tmp_path / "study"
