"""The verbs train, resume, eval and export, as a user types them."""

import json
import os
import runpy
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from qkvflow.cli import main
from qkvflow.evaluation import losses
from qkvflow.runs.config import RunConfig, make_config
from qkvflow.runs.rundir import read_lines
from qkvflow.training import train

TINY = {
    "model": {"d_model": 16, "num_steps": 2, "num_heads": 2, "context": 16},
    "train": {"steps": 12, "batch_size": 4, "eval_every": 6, "eval_tokens": 256, "log_every": 3},
    "checkpoint": {"every": 6},
}

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "words.txt"
    words = np.random.default_rng(0).choice(["flow", "of", "depth", "and", "time"], 3000)
    path.write_text(" ".join(words))
    return path


@pytest.fixture(scope="session")
def config(text: Path) -> Path:
    path = text.parent / "tiny.yaml"
    path.write_text(yaml.safe_dump({**TINY, "data": {"spec": f"file:{text}?split=0.8,0.1,0.1"}}))
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, standard output and standard error of a command."""

    def call(*argv: object) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main([str(each) for each in argv])
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture(scope="session")
def trained(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", "--config", str(config), "--out", str(out), "--quiet"]) == 0
    return out


def without_seconds(directory: Path) -> list[dict[str, Any]]:
    lines = read_lines(directory / "metrics.jsonl")
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def test_plain_lines_and_a_summary(config: Path, trained: Path, tmp_path: Path, run: Run):
    code, out, err = run("train", "--config", config, "--out", tmp_path / "run")
    assert code == 0
    assert "\x1b" not in out
    assert "step 6: validation loss" in out
    assert "the warm-up takes 100 of 12 steps; a tenth would be --warmup 1" in out
    assert "on the whole splits" in out
    assert "sample" in out
    assert f"in {tmp_path / 'run'}: config.yaml" in out
    assert err == ""
    assert "--- step 6 ---" in (tmp_path / "run" / "samples.txt").read_text()
    # The same command twice: the same numbers.
    assert without_seconds(tmp_path / "run") == without_seconds(trained)


def test_json_is_the_record_alone(config: Path, trained: Path, tmp_path: Path, run: Run):
    out_dir = tmp_path / "run"
    code, out, err = run("train", "--config", config, "--out", out_dir, "--seed", 5, "--json")
    assert code == 0
    assert json.loads(out) == json.loads((out_dir / "record.json").read_text())
    assert json.loads(out)["seed"] == 5
    assert err == ""
    assert without_seconds(out_dir) != without_seconds(trained)


def test_quiet_says_nothing(config: Path, tmp_path: Path, run: Run):
    code, out, err = run(
        "train", "--config", config, "--out", tmp_path / "run", "--quiet", "--tokens", 100
    )
    assert (code, out, err) == (0, "", "")
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["train"]["steps"] == 2


BAD: list[tuple[list[str], str]] = [
    (["--data", "file:absent.txt"], "no file absent.txt"),
    (["--data", "file:empty.txt"], "empty.txt is empty"),
    (["--data", "file:short.txt"], "fewer than one context of 16"),
    (["--data", "file:folder"], "directory folder has no text files"),
    (["--data", "file:latin1.txt", "--tokenizer", "char"], "latin1.txt is not UTF-8"),
    (["--data", "stdlibs"], "unknown corpus 'stdlibs'; did you mean stdlib"),
    (["--tokenizer", "bytes"], "did you mean byte"),
    (["--model", "standrd"], "unknown model 'standrd'; did you mean standard"),
    (["--model.d_model", "30", "--model.num_heads", "4"], "d_model 30 is not divisible"),
    (["--model.positions", "rope", "--model.d_model", "6"], "even width per head"),
    (["--model.num_steps", "0"], "num_steps must be positive"),
    (
        ["--train.eval_depths", "2,adaptive", "--model.injection", "add"],
        "scheme adaptive has no steps of its own to inject before",
    ),
    (["--steps", "0"], "train.steps must be positive"),
    (["--steps", "many"], "train.steps must be a whole number"),
    (["--steps", "5", "--tokens", "5"], "two budgets"),
    (["--model.field", "per-leyer"], "did you mean per-layer"),
    (["--optim.lrr", "1"], "did you mean --optim.lr"),
    (["--optim.name", "adamx"], "did you mean adamw"),
    (["--config", "absent.yaml"], "no configuration absent.yaml"),
    (["--out", "words.txt/run"], "cannot write words.txt/run"),
    (["--out", "/proc/run"], "cannot write /proc/run"),
    (["--out", "folder-with-things"], "folder-with-things is not empty"),
]


@pytest.mark.parametrize(("argv", "said"), BAD, ids=[" ".join(argv) for argv, _ in BAD])
def test_mistakes_are_one_line_and_code_2(
    argv: list[str],
    said: str,
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Run,
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("some words")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "short.txt").write_text("short")
    (tmp_path / "latin1.txt").write_bytes(b"caf\xe9 " * 500)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder-with-things").mkdir()
    (tmp_path / "folder-with-things" / "precious").touch()
    code, out, err = run("train", "--config", config, "--out", "run", *argv)
    assert code == 2
    assert out == ""
    assert said in err
    assert err.startswith("qkvflow: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()
    assert (tmp_path / "folder-with-things" / "precious").exists()


def test_bytes_that_are_not_utf8_are_fine_as_bytes(config: Path, tmp_path: Path, run: Run):
    (tmp_path / "latin1.txt").write_bytes(b"caf\xe9 " * 500)
    argv = ["--data", f"file:{tmp_path / 'latin1.txt'}", "--steps", "1", "--quiet", "--no-samples"]
    assert run("train", "--config", config, "--out", tmp_path / "run", *argv)[0] == 0


def test_an_existing_run_is_refused(config: Path, trained: Path, run: Run):
    code, out, err = run("train", "--config", config, "--out", trained)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"qkvflow resume {trained}" in err


def test_resume_of_what_is_not_a_run(tmp_path: Path, trained: Path, run: Run):
    for path, said in ((tmp_path, "is not a run directory"), (tmp_path / "x", "does not exist")):
        code, _, err = run("resume", path)
        assert (code, err.count("\n")) == (2, 1)
        assert said in err
    code, out, _ = run("resume", trained)
    assert code == 0
    assert "nothing to do" in out


def test_the_command_that_a_run_suggests(
    config: Path, trained: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
):
    """As it is printed: the context of 16 is shorter than the usual 200 tokens."""
    code, out, _ = run("train", "--config", config, "--out", tmp_path / "my run", "--steps", 1)
    assert code == 0
    [line] = [line for line in out.splitlines() if line.startswith("next: ")]
    ended = [run(*shlex.split(each)[1:]) for each in line.removeprefix("next: ").split("   ")]
    assert [code for code, _, _ in ended] == [0, 0]
    assert "note: 12 new tokens fit the model's context of 16" in ended[1][2]
    code, out, err = run("generate", trained, "--prompt", "flow of depth and time")
    assert code == 2
    assert "fills the model's context of 16 tokens; shorten it" in err


def test_eval_of_a_whole_split(trained: Path, run: Run):
    code, out, _ = run("eval", trained, "--json")
    assert code == 0
    answer = json.loads(out)
    record = json.loads((trained / "record.json").read_text())
    result = answer["results"][0]
    assert result["nats"] == record["losses"]["validation"]["nats"]
    assert result["standard_error"] == record["losses"]["validation"]["standard_error"]
    assert result["tokens"] == record["data"]["splits"]["validation"]["tokens"] - 1
    code, out, _ = run("eval", trained, "--split", "test", "--json")
    assert json.loads(out)["results"][0]["nats"] == record["losses"]["test"]["nats"]


def test_eval_at_another_depth_and_context(
    trained: Path, run: Run, monkeypatch: pytest.MonkeyPatch
):
    code, out, _ = run("eval", trained, "--num-steps", 4, "--scheme", "heun", "--context", "4,8")
    assert code == 0
    assert "context 4:" in out
    assert "positions 5-8:" in out
    # A solver that cannot arrive makes thousands of steps: few windows are enough to see that.
    monkeypatch.setattr(losses, "_BATCH_TOKENS", 64)
    adaptive = ("eval", trained, "--scheme", "adaptive", "--max-tokens", 64, "--json")
    for tolerance, reached in ((0.01, True), (1e-14, False)):
        code, out, err = run(*adaptive, "--tolerance", tolerance)
        assert code == 0
        found = json.loads(out)["results"][0]
        assert found["reached"] == reached
        assert found["solver"]["missed"] == (0 if reached else found["solver"]["batches"])
        assert (f"in {found['solver']['missed']} of" in err) != reached
    for argv, said in (
        (["--context", "64"], "do not fit"),
        (["--context", "x"], "--context must be"),
        (["--scheme", "eular"], "did you mean euler"),
        (["--split", "tset"], "did you mean test"),
        (["--tolerance", "0.1"], "--tolerance is for"),
        (["--num-steps", "0"], "--num-steps must be positive"),
        (["--checkpoint", "7"], "no checkpoint of step 7"),
    ):
        code, _, err = run("eval", trained, *argv)
        assert code == 2
        assert said in err


def test_a_longer_context_than_trained_is_said(config: Path, tmp_path: Path, run: Run):
    out = tmp_path / "run"
    argv = ["--model", "mamba", "--steps", "1", "--quiet", "--no-samples", "--model.d_state", "8"]
    assert run("train", "--config", config, "--out", out, *argv)[0] == 0
    code, said, err = run("eval", out, "--context", "32", "--max-tokens", "200", "--json")
    assert code == 0
    assert "trained on 16 tokens at a time, less than 32" in err
    assert json.loads(said)["results"][0]["by_position"][-1]["last"] == 32


def test_export_and_eval_of_the_export(trained: Path, tmp_path: Path, run: Run):
    code, out, _ = run("export", trained, "--to", tmp_path / "model")
    assert code == 0
    assert "model.safetensors" in out
    one, other = run("eval", trained, "--json"), run("eval", tmp_path / "model", "--json")
    assert json.loads(one[1])["results"] == json.loads(other[1])["results"]
    assert run("export", trained, "--to", tmp_path / "model")[0] == 2


def test_a_real_command_stops_and_resumes(config: Path, tmp_path: Path):
    """Ctrl-C in a terminal: one line that says how to go on, and code 130."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "qkvflow"]
    argv = ["train", "--config", str(config), "--out", str(out), "--steps", "100000"]
    process = subprocess.Popen(
        [*command, *argv, "--no-samples", "--train.eval_every", "100000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not read_lines(out / "metrics.jsonl"):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert f"qkvflow resume {out}" in err
    assert err.count("\n") == 1


def test_help_answers_without_loading_jax():
    code = (
        "import sys; from qkvflow.cli import main\n"
        "try: main(['train', '--help-all'])\n"
        "finally: assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "--optim.lr" in done.stdout
    assert "Peak learning rate" in done.stdout


def test_the_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Every line of it: training is shorter, of a shallower model and on less text."""

    def train_briefly(config: RunConfig, out: str) -> dict[str, Any]:
        spec = f"{config.data.spec}&length=20000"
        less: dict[str, Any] = {"model": {"num_steps": 2}, "data": {"spec": spec}}
        less |= {"train": {"steps": 3, "eval_every": 3}}
        return train(make_config(config.to_dict(), less), out)

    example = Path(__file__).parents[2] / "examples" / "train_in_python.py"
    monkeypatch.setattr("qkvflow.training.train", train_briefly)
    monkeypatch.setattr(sys, "argv", [str(example), str(tmp_path / "run")])
    runpy.run_path(str(example), run_name="__main__")
    said = capsys.readouterr().out
    assert "validation loss" in said
    assert "best possible" in said
    assert (tmp_path / "run" / "record.json").exists()
