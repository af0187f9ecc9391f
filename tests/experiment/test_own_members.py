"""Members of one's own, from files, in every verb: a comparison, and what is done with its runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from comparisons import environment, read_json
from own_members import EXAMPLES, no_examples

from qkvflow.cli import main

MODELS = ("my-field", "my-mixer", "my-scheme")
SMALL = (
    *("--model.d_model", "16", "--model.num_steps", "2", "--model.num_heads", "2"),
    *("--model.context", "16", "--model.d_time", "4", "--batch-size", "4"),
    *("--optim.schedule", "constant", "--optim.warmup", "2", "--no-samples"),
)
VERBS = {
    "eval": ["--split", "test", "--json"],
    "generate": ["--prompt", "depth", "--tokens", "5", "--json"],
    "analyze": ["--only", "trajectory", "--text", "the flow", "--json"],
    "finetune": ["--num-steps", "3", "--steps", "2", "--no-samples", "--json"],
    "resume": ["--steps", "6", "--no-samples", "--json"],
}
"""What each is given besides the run."""


def file_of(model: str) -> Path:
    return EXAMPLES / f"{model.replace('-', '_')}.py"


def spec(text: Path) -> str:
    return f"file:{text}?split=0.8,0.1,0.1"


@pytest.fixture(scope="module")
def compared(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All three beside each other, by the command and its workers."""
    out = tmp_path_factory.mktemp("own") / "out"
    plugins = [word for model in MODELS for word in ("--plugin", str(file_of(model)))]
    plan = ["--models", ",".join(MODELS), "--seeds", "2", "--steps", "4", "--workers", "2"]
    more = ["--evaluations", "1", "--speed-rounds", "0", "--data", spec(text)]
    line = ["compare", *plugins, *plan, *more, "--tokenizer", "char", *SMALL, "--out", str(out)]
    ended = subprocess.run(
        [sys.executable, "-m", "qkvflow", *line],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    assert (out / "report.html").exists()
    return out


@pytest.mark.parametrize("model", MODELS)
def test_every_verb(
    model: str, compared: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = compared / "runs" / model / "seed-1"
    given = {verb: [verb, str(run), *options] for verb, options in VERBS.items()}
    given["finetune"] += ["--data", spec(text), "--out", str(tmp_path / "tuned")]
    with no_examples():
        for words in given.values():
            assert main(words) == 2
            said = capsys.readouterr()
            assert f"give --plugin {file_of(model).name}" in said.err
            assert (said.out, said.err.count("\n")) == ("", 1)
    record = read_json(run / "record.json")
    found = {}
    with no_examples():
        for verb, words in given.items():
            assert main([*words, "--plugin", str(file_of(model))]) == 0, verb
            found[verb] = json.loads(capsys.readouterr().out)
    assert found["eval"]["results"][0]["nats"] == pytest.approx(
        record["losses"]["test"]["nats"], rel=1e-5
    )
    assert found["generate"]["tokens"] == 5
    assert found["analyze"]["num_steps"] == 2
    assert set(found["analyze"]["findings"]) == {"trajectory"}
    assert found["finetune"]["model"]["config"]["num_steps"] == 3
    assert found["resume"]["budget"]["steps"] == 6
    assert found["resume"]["label"] == record["label"] == model
