"""What is said of a model or run that is not what it seems: changed text, a solver that did not
arrive, tokens that are none, memory that does not suffice."""

import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from sharp_models import tiny as tiny_model

from qkvflow import errors
from qkvflow.cli import main
from qkvflow.distributed import memory
from qkvflow.errors import Note, OutOfMemory, UserError
from qkvflow.generation import generate
from qkvflow.runs.config import RunConfig
from qkvflow.training import resume, train
from qkvflow.training.trackers import TRACKERS


def test_tokens_out_of_range_are_refused():
    model = tiny_model("standard")
    for wrong in (-1, model.vocab_size, 10**6):
        with pytest.raises(UserError, match=f"token {wrong} is not in the model's vocabulary"):
            model(jnp.array([[0, wrong]]))
    assert model(jnp.array([[0, model.vocab_size - 1]])).shape[-1] == model.vocab_size


def test_an_empty_sequence_is_refused():
    with pytest.raises(UserError, match="no tokens"):
        tiny_model("standard")(jnp.zeros((2, 0), jnp.int32))


def test_half_a_step_is_refused():
    """In a process of its own: here types are checked at every call."""
    program = (
        "import jax, numpy as np, qkvflow\n"
        "model = qkvflow.build('standard', vocab_size=5, key=jax.random.key(0), d_model=8,"
        " num_heads=1, num_steps=2)\n"
        "assert model.at_depth(np.int64(3)).num_steps == 3\n"
        "for wrong in (1.5, 2.0, 0):\n"
        "    try:\n"
        "        model.at_depth(wrong)\n"
        "    except qkvflow.errors.UserError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.count("num_steps must be a whole number of at least 1") == 3, done.stderr


def test_a_solver_that_does_not_arrive_says_so():
    pytest.importorskip("diffrax")
    model = tiny_model("tong", scheme="adaptive", tolerance=1e-14)
    tokens = jnp.array([[1, 2, 3]])
    for work in (
        lambda: model(tokens),
        lambda: model.trajectory(tokens),
        lambda: generate(model, [[1, 2, 3]], num_tokens=2),
    ):
        with pytest.warns(Note, match="ran out of its 256 steps") as said:
            work()
        assert len(said) == 1
    good = tiny_model("tong", scheme="adaptive", tolerance=1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        good(tokens)
        generate(good, [[1, 2, 3]], num_tokens=2)


def test_eval_of_a_changed_corpus_says_so(
    finished: Path, tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
):
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    words = ["eval", str(run), "--max-tokens", "64"]
    assert main(words) == 0
    assert "has changed" not in capsys.readouterr().err
    before = text.read_bytes()
    try:
        text.write_bytes(before[:-100] + b"depth is a flow")
        assert main(words) == 0
        said = capsys.readouterr().err
    finally:
        text.write_bytes(before)
    [line] = [line for line in said.splitlines() if "has changed since this model" in line]
    assert line.startswith("note: ")


def test_a_program_that_does_not_fit_is_refused_before_it_runs(
    tiny: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(memory, "memory_limit", lambda: 1000)
    with pytest.raises(OutOfMemory, match=r"a step takes .* GB and there are 0\.0 GB"):
        train(tiny(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.undo()
    assert train(tiny(train={"steps": 2}), tmp_path / "run")["status"] == "finished"


def test_an_evaluation_that_does_not_fit_is_refused_before_it_runs(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(memory, "memory_limit", lambda: 1000)
    assert main(["eval", str(finished), "--context", "8"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("qkvflow: out of memory: an evaluation at context 8 takes ")
    assert "use a shorter context" in said


@pytest.mark.parametrize(
    "error",
    [
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.\nmore"),
        MemoryError(),
        MemoryError("Unable to allocate 8 TiB for an array"),
    ],
)
def test_running_out_of_memory_is_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr("qkvflow.cli._run_verb", fail)
    assert main(["models"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("qkvflow: out of memory (")
    assert said.count("\n") == 1


def test_other_errors_are_not_taken_for_it():
    assert errors.out_of_memory(RuntimeError("INVALID_ARGUMENT: no")) is None


def test_a_tracker_that_cannot_begin_leaves_nothing(
    tiny: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def no_login(directory: Path, config: RunConfig) -> None:
        (directory / "wandb").mkdir()
        raise RuntimeError("api_key not configured (no-tty).\ncall wandb.login()")

    monkeypatch.setitem(TRACKERS._members, "tensorboard", no_login)
    with pytest.raises(UserError, match=r"--track tensorboard could not begin \(api_key"):
        train(tiny(track={"name": "tensorboard"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    # What others keep in a directory is theirs.
    (tmp_path / "mine" / ".git").mkdir(parents=True)
    (tmp_path / "mine" / ".git" / "precious").write_text("work")
    with pytest.raises(UserError, match="could not begin"):
        train(tiny(track={"name": "tensorboard"}), tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == [".git"]
    assert (tmp_path / "mine" / ".git" / "precious").read_text() == "work"


@pytest.mark.parametrize("content", [[1], 3, {}, {"status": 1}, {"status": "finished"}, "x"])
def test_a_record_of_the_wrong_shape_is_written_again(content: object, unfinished: Path):
    (unfinished / "record.json").write_text(json.dumps(content))
    assert resume(unfinished)["status"] == "finished"
    assert json.loads((unfinished / "record.json").read_text())["status"] == "finished"
