"""The verb analyze, as a user types it, on a real run and its export."""

import json
from pathlib import Path

import numpy as np
import pytest

from qkvflow.analysis import spectra
from qkvflow.cli import main
from qkvflow.distributed import memory
from qkvflow.runs.load import load

SHAPE = ["--model.d_model", "16", "--model.num_heads", "2", "--model.num_steps", "2"]
TRAIN = ["--steps", "2", "--batch-size", "2", "--model.context", "16", "--quiet", "--no-samples"]


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("analyze")
    (root / "words.txt").write_text("flow of depth and time " * 100)
    data = ["--data", f"file:{root / 'words.txt'}?split=0.8,0.1,0.1", "--tokenizer", "char"]
    assert main(["train", *data, *SHAPE, *TRAIN, "--out", str(root / "run")]) == 0
    return root / "run"


def test_a_run_and_its_export(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    only = ["--only", "spectra", "--text", "flow of time"]
    assert main(["analyze", str(run_dir), *only]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    lines = said.out.splitlines()
    assert lines[0] == "spectra"
    assert lines[1].startswith("  QK: eigenvalue magnitudes")
    assert lines[-1].startswith(f"wrote {run_dir / 'analysis' / 'analysis.html'}; beside it ")
    found = np.load(run_dir / "analysis" / "spectra.npz")
    expected = spectra(load(run_dir).model)
    np.testing.assert_array_equal(
        found["circuits/OV/eigenvalues"], expected.circuits["OV"].eigenvalues
    )
    assert (run_dir / "analysis" / "figures" / "spectra_plane.pdf").exists()
    # An export gives the same numbers.
    assert main(["export", str(run_dir), "--to", str(tmp_path / "model")]) == 0
    capsys.readouterr()
    assert main(["analyze", str(tmp_path / "model"), *only, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == json.loads((run_dir / "analysis" / "analysis.json").read_text())
    assert summary["pieces"] == list("flow of time")
    again = np.load(tmp_path / "model" / "analysis" / "spectra.npz")
    assert all(np.array_equal(found[key], again[key], equal_nan=True) for key in found.files)


@pytest.fixture
def no_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """No PNG and PDF, for tests that look at something else."""
    monkeypatch.setattr("qkvflow.report.charts.printed.write", lambda figure, path: ())


def test_a_text_of_its_own_at_another_depth(
    run_dir: Path, no_prints: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    options = ["--only", "trajectory", "--num-steps", "3", "--out", str(tmp_path / "out"), "--json"]
    assert main(["analyze", str(run_dir), *options]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["num_steps"] == 3
    # The alphabet has no line break; the sample starts anywhere and fills the context.
    assert len(summary["pieces"]) == 16
    assert "sample of the model's own" in summary["notes"][0]
    assert np.load(tmp_path / "out" / "trajectory.npz")["ts"].shape == (4,)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--only", "spectre"], "unknown analysis 'spectre'; did you mean spectra"),
        (["--only", "weights,"], "unknown analysis ''"),
        (["--only", "state-space"], "this model has no state space layer"),
        (["--text", "flow of depth and time"], "22 tokens, more than this model's context of 16"),
        (["--text", ""], "--text is empty"),
        (["--text", "zzz"], "'z' is not in the alphabet"),
        (["--num-steps", "0"], "num_steps must be a whole number of at least 1"),
        (["--scheme", "eular"], "did you mean euler"),
        (["--exponents", "many"], "--exponents must be a number such as 16, or all"),
        (["--checkpoint", "7"], "no checkpoint of step 7"),
        (["--out", "/proc/analysis", "--only", "weights"], "cannot write /proc/analysis"),
    ],
)
def test_mistakes_are_one_line(
    options: list[str], reason: str, run_dir: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["analyze", str(run_dir), *options]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert reason in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("name", ["lyapunov", "spectra", "trajectory", "weights"])
def test_what_does_not_fit_is_refused_before_it_runs(
    name: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(memory, "memory_limit", lambda: 1000)
    assert main(["analyze", str(run_dir), "--only", name, "--text", "flow"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"qkvflow: out of memory: the {name} analysis ")
    assert " GB and there are 0.0 GB; give " in said.err
    assert said.err.count("\n") == 1


def test_what_is_asked_for_decides_whether_it_fits(
    run_dir: Path, no_prints: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """All exponents of 12 tokens carry 192 vectors through the flow, two exponents 10."""
    words = ["--only", "lyapunov", "--text", "flow of time", "--out", str(tmp_path), "--exponents"]
    monkeypatch.setattr(memory, "memory_limit", lambda: 1 << 20)
    assert main(["analyze", str(run_dir), *words, "all"]) == 2
    assert not list(tmp_path.glob("*.npz"))
    assert main(["analyze", str(run_dir), *words, "2"]) == 0
    monkeypatch.undo()
    assert main(["analyze", str(run_dir), *words, "all"]) == 0


def test_what_is_not_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["analyze", str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err
