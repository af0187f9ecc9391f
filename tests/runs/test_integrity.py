"""Files of a run that were altered are not believed: they are refused, made again or named."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import qkvflow
from qkvflow.cli import main
from qkvflow.data.tokenizers.char import CharTokenizer
from qkvflow.digests import arrays_digest, file_digest, is_intact, sealed
from qkvflow.errors import UserError
from qkvflow.records import read_record as read_one
from qkvflow.runs.checkpoint import Checkpoints
from qkvflow.runs.config import RunConfig
from qkvflow.runs.export import export
from qkvflow.runs.rundir import read_record
from qkvflow.training import resume, train
from qkvflow.training.reporter import SilentReporter


class Notes(SilentReporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def start(self, *, first_step: int, steps: int, lines: list[str]) -> None:
        self.lines += lines

    def note(self, text: str) -> None:
        self.lines.append(text)


def flip(path: Path, position: int, bit: int = 3) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(bytes(content))


def refused(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        qkvflow.load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_a_digest_is_of_names_types_shapes_and_values():
    one = {"a": jnp.arange(6.0), "b": jnp.zeros((2, 3), jnp.bfloat16), "c": jnp.int32(3)}
    assert arrays_digest(one) == arrays_digest(dict(reversed(one.items())))
    assert arrays_digest(one) == arrays_digest(one, lambda array: np.asarray(array))
    for other in (
        {**one, "a": one["a"].at[3].set(3.0000002)},
        {**one, "a": one["a"].reshape(2, 3)},
        {**one, "b": one["b"].astype(jnp.float16)},
        {"a": one["a"], "b": one["b"], "d": one["c"]},
        {**one, "b": -one["b"]},  # Negative zero.
    ):
        assert arrays_digest(other) != arrays_digest(one)


def test_a_digest_of_a_beginning_is_that_of_the_shorter_file(tmp_path: Path):
    (tmp_path / "long").write_bytes(b"abcdef")
    (tmp_path / "short").write_bytes(b"abc")
    assert file_digest(tmp_path / "long", 3) == file_digest(tmp_path / "short")
    assert file_digest(tmp_path / "long") != file_digest(tmp_path / "short")


def test_a_sealed_document_survives_json_and_nothing_else():
    document = sealed({"a": [1, 2.5, None, float("nan")], "b": {"c": (1, "x")}})
    read = json.loads(json.dumps(document))
    assert is_intact(read)
    read["b"]["c"][0] = 2
    assert not is_intact(read)


# Reads of Orbax that were under way when another failed are dropped: pytest would count them.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("part", ["model", "training", "host"])
def test_no_flipped_bit_of_a_checkpoint_is_believed(
    part: str, run: Path, tiny: Callable[..., RunConfig], capfd: pytest.CaptureFixture[str]
):
    """Every fault is refused in one line, or has changed nothing that is read."""
    from qkvflow.training.program import make_program

    tokenizer = qkvflow.load(run).tokenizer
    program = make_program(tiny(train={"samples": "evaluations"}), tokenizer.vocab_size)

    def read() -> str:
        checkpoints = Checkpoints(run, read_only=True)
        try:
            host = checkpoints.restore_host(40)
            arrays = checkpoints.restore(40, *program.state_parts())
        finally:
            checkpoints.close()
        named = {str(index): leaf for index, leaf in enumerate(_leaves(arrays))}
        return arrays_digest(named) + str(host)

    whole, generator = read(), random.Random(7)
    files = [path for path in sorted((run / "checkpoints/40" / part).rglob("*")) if path.is_file()]
    data = max(files, key=lambda path: path.stat().st_size)
    told: list[str] = []
    for path in [data] * 6 + generator.choices(files, k=6):
        before = path.read_bytes()
        if not before:
            continue
        flip(path, generator.randrange(len(before)), generator.randrange(8))
        try:
            assert read() == whole
        except UserError as error:
            told.append(str(error))
        finally:
            path.write_bytes(before)
    assert len(told) >= 5
    assert all("checkpoint of step 40" in line and "\n" not in line for line in told)
    assert capfd.readouterr().err.count("\n") < 20


def _leaves(tree: object) -> list[object]:
    import jax

    return jax.tree.leaves(tree)


def test_other_arrays_of_the_right_shape_are_refused(run: Path, finished: Path):
    """Whole and readable, but of another step."""
    shutil.rmtree(run / "checkpoints/40/model")
    shutil.copytree(run / "checkpoints/30/model", run / "checkpoints/40/model")
    assert "the arrays of its model part were altered" in refused(run)


def test_a_configuration_that_is_not_the_checkpoints_is_refused(run: Path):
    path = run / "config.yaml"
    text = path.read_text()
    assert "num_steps: 2" in text
    path.write_text(text.replace("num_steps: 2", "num_steps: 3"))
    assert "model.num_steps was 2" in refused(run)


def swap_letters(path: Path) -> None:
    content = json.loads(path.read_text())
    letters = content["alphabet"]
    content["alphabet"] = letters[:2] + letters[3] + letters[2] + letters[4:]
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("fault", ["gone", "damaged", "swapped"])
@pytest.mark.parametrize("ended", [True, False])
def test_resume_restores_a_tokenizer(fault: str, ended: bool, run: Path):
    path = run / "tokenizer.json"
    whole = path.read_bytes()
    if not ended:
        (run / "record.json").unlink()
    if fault == "gone":
        path.unlink()
    elif fault == "damaged":
        path.write_bytes(whole[:20])
    else:
        swap_letters(path)
    said = refused(run)
    assert str(path) in said
    assert "qkvflow resume" in said
    notes = Notes()
    resume(run, reporter=notes)
    assert path.read_bytes() == whole
    assert qkvflow.load(run).step is not None
    if ended:
        assert any("tokenizer.json" in line for line in notes.lines)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_no_flipped_bit_of_an_export_is_believed(name: str, run: Path, tmp_path: Path):
    path = export(run, tmp_path / "export") / name
    before, generator = path.read_bytes(), random.Random(3)
    for _ in range(12):
        flip(path, generator.randrange(len(before)), generator.randrange(8))
        assert str(path) in refused(tmp_path / "export") or name == "config.json"
        path.write_bytes(before)
    qkvflow.load(tmp_path / "export")


@pytest.mark.parametrize("name", ["metrics.jsonl", "samples.txt"])
@pytest.mark.parametrize("gone", [True, False])
def test_resume_says_which_growing_file_was_altered(name: str, gone: bool, unfinished: Path):
    path = unfinished / name
    if gone:
        path.unlink()
    else:
        flip(path, 12, 0)
    notes = Notes()
    resume(unfinished, reporter=notes)
    told = [line for line in notes.lines if name in line]
    assert len(told) == 1
    assert ("is gone" if gone else "was altered") in told[0]


@pytest.mark.parametrize("change", [{"step": None}, {"step": "4"}, {"loss": []}, {"loss": "x"}])
def test_altered_lines_that_are_still_json_end_nothing(
    change: dict[str, object], finished: Path, unfinished: Path
):
    path = unfinished / "metrics.jsonl"
    first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text(json.dumps({**json.loads(first), **change}) + "\n" + "".join(rest))
    notes, wanted = Notes(), read_record(finished)
    assert wanted is not None
    assert resume(unfinished, reporter=notes)["losses"] == wanted["losses"]
    assert any("metrics.jsonl was altered" in line for line in notes.lines)


def test_resume_says_nothing_of_files_as_they_were(unfinished: Path):
    with (unfinished / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # As a kill leaves it.
    notes = Notes()
    resume(unfinished, reporter=notes)
    assert not [line for line in notes.lines if "altered" in line or "gone" in line]


def test_no_flipped_bit_of_a_record_is_believed(run: Path):
    """`resume` of a finished run writes it again, to the same losses."""
    path, generator = run / "record.json", random.Random(5)
    before = json.loads(path.read_text())
    content = path.read_bytes()
    for _ in range(20):
        flip(path, generator.randrange(len(content)), generator.randrange(8))
        found = read_record(run)
        assert found is None or {k: found[k] for k in before if k in found} == before
        path.write_bytes(content)
    path.write_text(path.read_text().replace('"steps": 40', '"steps": 41'))
    with pytest.raises(UserError, match="altered since it was written; delete it"):
        read_one(path)
    assert resume(run)["losses"] == before["losses"]
    assert read_one(path).content["budget"]["steps"] == 40


def test_a_finished_run_says_which_file_was_altered(run: Path):
    flip(run / "metrics.jsonl", 20)
    notes = Notes()
    resume(run, reporter=notes)
    assert "metrics.jsonl was altered since it was written" in notes.lines[0]


def test_a_deleted_checkpoint_of_a_finished_run_is_missed(
    run: Path, capsys: pytest.CaptureFixture[str]
):
    """Where a damaged one was deleted, as advised, another step is not taken for the last."""
    words = ["eval", str(run), "--json", "--max-tokens", "64", "--checkpoint", "last"]
    assert main(words) == 0
    before = capsys.readouterr()
    assert before.err == ""
    shutil.rmtree(run / "checkpoints" / "40")
    assert main(words) == 0
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"note: the checkpoint of step 40 of {run} is gone: this is step ")
    (run / "record.json").unlink()
    resume(run)
    assert main(words) == 0
    assert capsys.readouterr() == before


def test_a_run_killed_within_its_first_files_can_be_begun_again(
    tiny: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(CharTokenizer, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        train(tiny(train={"steps": 2}), tmp_path / "run")
    monkeypatch.undo()
    assert resume(tmp_path / "run")["status"] == "finished"
