"""Samples that cost nothing, for tests that are not about them."""

import pytest
from processes import fake_sample

from qkvflow.training import loop


@pytest.fixture(autouse=True)
def fake_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """They depend on the weights all the same."""
    monkeypatch.setattr(loop, "sample_text", fake_sample)
