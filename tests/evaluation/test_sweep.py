"""Depth sweeps: every point is the evaluation it says it is, and costs what can be counted."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tiny_models import SCHEME_CASES, config_of, make, tiny

from qkvflow.cli import main
from qkvflow.errors import UserError
from qkvflow.evaluation import evaluate
from qkvflow.evaluation.sweep import Setting, _is_trained, settings_of
from qkvflow.report.figures.sweep import quality_against_compute
from qkvflow.report.sweep import to_table
from qkvflow.runs.corpus import load_split
from qkvflow.runs.load import load
from qkvflow.schemes import make_scheme

WIDTH, CONTEXT = 16, 16

pytestmark = pytest.mark.usefixtures("rolled")


@pytest.fixture(scope="module")
def trained(rolled: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    words = np.random.default_rng(0).choice(["flow", "of", "depth", "and", "time"], 1500)
    (folder / "words.txt").write_text(" ".join(words))
    options = {
        "data": f"file:{folder / 'words.txt'}?split=0.8,0.1,0.1",
        "model": "hybrid",
        "model.d_model": WIDTH,
        "model.num_heads": 2,
        "model.num_steps": 2,
        "model.context": CONTEXT,
        "model.horizon": 3,
        "model.init_std": 0.12,
        # Smooth in t, so that eight steps of RK4 are as good as exact.
        "model.time_features": "raw",
        "tokenizer": "char",
        "steps": 30,
    }
    given = [str(x) for name, value in options.items() for x in (f"--{name}", value)]
    assert main(["train", *given, "--out", str(folder / "run"), "--quiet", "--no-samples"]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def points(trained: Path) -> list[dict]:
    out = trained.parent / "swept"
    words = ["sweep-depth", str(trained), "--num-steps", "2,8", "--schemes", "euler,rk4"]
    assert main([*words, "--adaptive", "1e-1,1e-4", "--out", str(out)]) == 0
    return json.loads((out / "sweep.json").read_text())["points"]


def test_losses_are_those_of_evaluation(trained: Path, points: list[dict]):
    run = load(trained)
    split, _ = load_split(run, "validation")
    for point in (points[1], points[3]):
        scheme = make_scheme(point["scheme"], composition="parallel")
        alone = evaluate(run.model.at_depth(point["num_steps"], scheme), split)
        assert point["nats"] == alone.nats
        assert point["tokens"] == alone.tokens == len(split) - 1
    assert [point["trained"] for point in points] == [True, *[False] * 5]


def test_the_solvers_agree_in_the_limit(points: list[dict]):
    """Tsitouras 5/4 at a small tolerance and RK4 at many steps follow the same flow; Euler at few
    steps does not, or the test would show nothing."""
    by_name = {(p["scheme"], p["num_steps"] or p["tolerance"]): p["nats"] for p in points}
    assert abs(by_name["adaptive", 1e-4] - by_name["rk4", 8]) < 1e-4
    assert abs(by_name["euler", 2] - by_name["rk4", 8]) > 1e-3


def test_costs_are_counted(trained: Path, points: list[dict]):
    vocab = load(trained).model.vocab_size
    # qkv, output and an MLP of ratio 4 are 12 squares; scores and values are a row of CONTEXT each.
    block = 2 * 12 * WIDTH**2 + 2 * 2 * CONTEXT * WIDTH
    for point, evaluations in zip(points, (2, 8, 8, 32), strict=False):
        assert point["evaluations"] == evaluations
        assert point["flops_per_token"] == evaluations * block + 2 * WIDTH * vocab
        assert point["ms_per_token"] > 0
    loose, tight = points[4:]
    assert loose["reached"]
    assert tight["reached"]
    # Six new evaluations in each of its steps, and more steps for more digits.
    assert tight["evaluations"] > loose["evaluations"] > 6
    assert loose["flops_per_token"] == round(loose["evaluations"] * block) + 2 * WIDTH * vocab


def test_files_and_table(trained: Path, points: list[dict], capsys: pytest.CaptureFixture[str]):
    out = trained.parent / "swept"
    rows = list(csv.DictReader((out / "sweep.csv").read_text().splitlines()))
    assert [float(row["nats"]) for row in rows] == [point["nats"] for point in points]
    assert (out / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "sweep.pdf").read_bytes().startswith(b"%PDF")
    words = ["--num-steps", "8", "--schemes", "euler", "--max-tokens", "64"]
    assert main(["sweep-depth", str(trained), *words]) == 0
    said = capsys.readouterr().out
    # The model as it was trained is always there to compare with.
    assert "euler, 2 steps *" in said
    assert "euler, 8 steps" in said
    assert "(64 tokens, context 16), horizon 3" in said


@pytest.mark.parametrize("scheme", ["fixed-point", "adaptive"])
def test_a_model_of_a_solver_is_measured_as_trained(scheme: str):
    config = config_of("shared", **{**SCHEME_CASES[scheme], "tolerance": 0.02})
    options: dict[str, Any] = {"composition": config.composition, "num_steps": (2,)}
    options["own_tolerance"] = 0.02
    model = make(config)
    found = settings_of(model, config.scheme, schemes=("euler",), **options)
    assert found[0] == Setting(scheme, None, 0.02)
    assert _is_trained(model, found[0], config.composition)
    assert settings_of(model, config.scheme, schemes=(), **options)[0] == found[0]
    with pytest.raises(UserError, match="no steps of its own to inject before"):
        settings_of(
            tiny("shared", injection="add"), "residual", schemes=(), tolerances=(1e-2,), **options
        )


def test_one_window_has_no_standard_error(points: list[dict]):
    figure = quality_against_compute([{**p, "standard_error": float("nan")} for p in points], "m")
    panel: Any = figure.panels[0]
    low, high = panel.y.views[0].low, panel.y.views[0].high
    assert low < min(p["nats"] for p in points) < max(p["nats"] for p in points) < high
    shown = io.StringIO()
    Console(file=shown, width=200).print(to_table([{**points[0], "standard_error": float("nan")}]))
    assert "nan" not in shown.getvalue()


def test_a_solver_that_runs_out_of_steps_says_so(trained: Path):
    run = load(trained)
    split, _ = load_split(run, "validation")
    for tolerance, arrives in ((1e-1, True), (1e-12, False)):
        model = run.model.at_depth(scheme=make_scheme("adaptive", tolerance=tolerance))
        work = evaluate(model, split, batch_size=1, max_tokens=2 * CONTEXT).solved
        assert work is not None
        assert (work.batches, work.missed) == (2, 0 if arrives else 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--num-steps", "0,2"], "--num-steps must be positive numbers"),
        (["--num-steps", ""], "--num-steps must be positive numbers"),
        (["--adaptive", "small"], "--adaptive must be positive numbers"),
        (["--schemes", "adaptive"], "give tolerances with --adaptive"),
        (["--schemes", "eular"], "did you mean euler"),
        (["--split", "tset"], "did you mean test"),
        (["--max-tokens", "-1"], "--max-tokens must not be negative"),
        (["--out", __file__], "File exists"),
    ],
)
def test_mistakes(trained: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["sweep-depth", str(trained), *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
