"""The verb `compare`, from the options to the report."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from comparisons import environment, read_json
from own_members import EXAMPLES, no_examples

from qkvflow.cli import main
from qkvflow.evaluation.losses import evaluate
from qkvflow.experiment.plan import TUNING_RATES
from qkvflow.runs.corpus import load_split
from qkvflow.runs.load import load

EXAMPLE = EXAMPLES / "my_field.py"
SMALL = (
    *("--model.d_model", "16", "--model.num_steps", "2", "--model.num_heads", "2"),
    *("--model.context", "16", "--batch-size", "4", "--optim.warmup", "2"),
)


def options(text: Path, out: Path, *more: str) -> list[str]:
    data = f"file:{text}?split=0.8,0.1,0.1"
    return ["compare", "--data", data, "--tokenizer", "char", "--out", str(out), *SMALL, *more]


def test_a_field_of_ones_own(text: Path, tmp_path: Path):
    """A real process: a plugin, three seeds, samples, statistics and the report."""
    out = tmp_path / "out"
    given = ("--plugin", str(EXAMPLE), "--models", "standard,my-field", "--steps", "6")
    words = options(text, out, *given, "--evaluations", "2", "--speed-rounds", "0")
    line = [sys.executable, "-m", "qkvflow", *words]
    ended = subprocess.run(
        line, env=environment(COLUMNS="160"), capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, ended.stderr
    assert f"report: {out / 'report.html'}" in ended.stdout
    assert "my-field" in ended.stdout
    tests = read_json(out / "significance_tests.json")
    assert [(pair["a"], pair["b"]) for pair in tests["all_pairs"]["pairs"]] == [
        ("my-field", "standard")
    ]
    plan = yaml.safe_load((out / "plan.yaml").read_text())
    assert "plugins" not in plan, "a plan is data; plugins are given to the command"
    config = yaml.safe_load((out / "runs" / "my-field" / "seed-0" / "config.yaml").read_text())
    (plugin,) = config["plugins"]
    assert plugin["name"] == "my_field.py"
    assert plugin["sha256"] == hashlib.sha256(EXAMPLE.read_bytes()).hexdigest()
    assert plan["command"].startswith("qkvflow compare")
    samples = (out / "runs" / "my-field" / "seed-2" / "samples.txt").read_text()
    assert "no sample" not in samples
    # The selected weights of every run are kept, and make the losses of its record.
    kept = load(out / "runs" / "standard" / "seed-1")
    losses = read_json(out / "runs" / "standard" / "seed-1" / "record.json")["losses"]
    found = evaluate(kept.model, load_split(kept, "test")[0])
    assert found.nats == pytest.approx(losses["test"]["nats"], rel=1e-5)
    assert kept.step == losses["selected_step"]
    # The same again, in this process, has nothing to do but the report.
    (out / "report.html").unlink()
    with no_examples():
        assert main([*words, "--quiet"]) == 0
    assert (out / "report.html").exists()


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (("--models", "standrad", "--steps", "5"), "did you mean standard"),
        (("--models", "standard:d_mode=4", "--steps", "5"), "did you mean d_model"),
        (("--seeds", "0", "--steps", "5"), "seeds must be at least 1"),
        (("--seeds", "x", "--steps", "5"), "seeds must be a whole number"),
        (("--steps", "5", "--tokens", "5"), "--steps and --tokens are 2 budgets"),
        ((), "give a budget"),
        (("--preset", "quik"), "did you mean quick"),
        (("--preset", "quick", "--config", "x.yaml"), "two plans"),
        (("--config", "no.yaml"), "no configuration no.yaml"),
        (("--plugin", "no.py", "--steps", "5"), "no plugin no.py"),
        (("--steps", "5", "--match", "parms"), "did you mean params"),
        (("--steps", "5", "--workers", "0"), "--workers must be at least 1"),
        (("--steps", "5", "--ray-address", "x"), "are for --executor ray"),
        (("--steps", "5", "--executor", "rya"), "did you mean ray"),
        (("--steps", "5", "--model.name", "tong"), "--models"),
        (("--steps", "5", "--train.seed", "1"), "--seeds"),
        (("--stps", "5"), "did you mean --steps"),
        (("--models", "standard", "--steps", "5", "--data", "nowhere"), "nowhere"),
    ],
)
def test_mistakes_are_one_line(
    more: tuple[str, ...], part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    try:
        code = main(["compare", "--out", str(tmp_path / "out"), *more])
    except SystemExit as exit:
        code = exit.code
    said = capsys.readouterr().err
    assert code == 2
    assert part in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_broken_plugin_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    plugin = tmp_path / "mine.py"
    plugin.write_text("x = 1\ny = undefined_name\n")
    words = ["compare", "--plugin", str(plugin), "--steps", "5", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "mine.py, line 2 failed: NameError" in capsys.readouterr().err


def test_dry_run_shows_matched_shapes(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    more = ("--models", "standard,shared", "--steps", "5", "--match", "params", "--dry-run")
    assert main(options(text, tmp_path / "out", *more)) == 0
    plan = yaml.safe_load(capsys.readouterr().out)
    models = plan["resolved"]["models"]
    counts = [models[label]["block_parameters"] for label in ("standard", "shared")]
    assert abs(counts[1] / counts[0] - 1) <= 0.02
    assert models["shared"]["matched"] == "params of standard"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("none", "match", "tuned"),
    [((), "flops", True), (("--match", "none", "--tune", "none"), None, False)],
)
def test_a_preset_without_its_match_and_search(
    none: tuple[str, ...],
    match: str | None,
    tuned: bool,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    more = ("--preset", "looped", "--models", "standard,shared", *none, "--dry-run")
    assert main(options(text, tmp_path / "out", *more)) == 0
    plan = yaml.safe_load(capsys.readouterr().out)
    assert plan.get("match") == match
    assert bool(plan.get("tune")) == tuned


def test_matching_drops_no_model_of_the_users(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    plan = tmp_path / "plan.yaml"
    models = ["standard", "standard-narrow-of-mine=shared"]
    plan.write_text(yaml.safe_dump({"models": models, "budget": {"steps": 5}}))
    more = ("--config", str(plan), "--match", "params", "--dry-run")
    assert main(options(text, tmp_path / "out", *more)) == 0
    said = yaml.safe_load(capsys.readouterr().out)
    assert [each["label"] for each in said["models"]] == ["standard", "standard-narrow-of-mine"]


def test_help_is_quick_and_readable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    said = capsys.readouterr().out
    for word in ("--models", "--preset", "--match", "--tune", "params_of=LABEL"):
        assert word in said
    # Written out there, because the plan is not imported for the sake of a help.
    grid = said.split("lr (of ")[1].split(", X")[0]
    assert tuple(float(rate) for rate in grid.split(",")) == tuple(
        float(rate) for rate in TUNING_RATES.split(",")
    )
