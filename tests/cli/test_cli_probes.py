"""A probe from training to `eval`, records, statistics and the report."""

import json
from pathlib import Path

import pytest

from qkvflow.cli import main
from qkvflow.records import read_record
from qkvflow.report import build_report
from qkvflow.report.terminal import print_summary

WORDS = [
    "--model.d_model",
    "16",
    "--model.num_heads",
    "2",
    "--model.num_steps",
    "2",
    "--train.steps",
    "2",
]
WORDS += ["--train.batch_size", "2", "--train.samples", "none", "--model.context", "22"]
SPEC = "source:p-hop?hops=1-2&sequence=20&length=3000"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds of one model, laid out as a comparison's."""
    directory = tmp_path_factory.mktemp("study")
    for seed in range(3):
        out = directory / "runs" / "shared" / f"seed-{seed}"
        words = ["train", "--model", "shared", "--data", SPEC, "--data.tokenizer", "source", *WORDS]
        words += ["--train.seed", str(seed), "--train.eval_levels", "3", "--out", str(out)]
        assert main(words) == 0
    return directory


def test_eval_prints_what_the_record_holds(study: Path, capsys: pytest.CaptureFixture[str]):
    run = study / "runs" / "shared" / "seed-0"
    found = read_record(run / "record.json").content["accuracy"]
    assert [each["level"] for each in found["levels"]] == [1, 2]
    # Nothing in its alphabet could tell it of three.
    assert found["left_out"] == [3]
    capsys.readouterr()
    words = ["eval", str(run), "--split", "test", "--levels", "3"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == found
    assert main(words) == 0
    said = capsys.readouterr().out
    assert f"answers: {found['tokens']:.2%} (95 % interval {found['low']:.2%} to" in said
    assert "a guess has 25.00%" in said
    assert f"hops 2: {found['levels'][1]['tokens']:.2%} (95 % interval" in said
    assert "hops 3: the model has no" in said
    assert (
        f"the best possible loss, the entropy rate of this source, is {found['floor']:.4f}" in said
    )
    assert main(["eval", str(run), "--levels", "x"]) == 2
    assert "whole numbers" in capsys.readouterr().err


def test_the_report_has_answers_by_difficulty(study: Path, capsys: pytest.CaptureFixture[str]):
    paths = build_report([study])
    accuracy = paths.report.model("shared").summary["accuracy"]
    shares = [
        read_record(study / "runs" / "shared" / f"seed-{seed}" / "record.json").content["accuracy"]
        for seed in range(3)
    ]
    mean = sum(each["tokens"] for each in shares) / 3
    assert accuracy["all"]["mean"] == pytest.approx(mean)
    second = accuracy["levels"][1]
    assert second["mean"] == pytest.approx(sum(each["levels"][1]["tokens"] for each in shares) / 3)
    html, tex = paths.html.read_text(), (study / "results_table.tex").read_text()
    print_summary(paths)
    said = " ".join(capsys.readouterr().out.split())
    for text in (html, tex.replace(r"\%", "%"), said):
        assert f"{100 * mean:.1f} %" in text
        assert "25.0 %" in text
        assert "hops 2" in text
        assert f"{shares[0]['floor']:.4f}" in text
    assert tex.count(r"\begin{table}") == tex.count(r"\end{table}") == 2
