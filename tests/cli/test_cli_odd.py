"""Odd words and files: exit code 2 and one line that is not a traceback, soon."""

import json
import time
import zlib
from pathlib import Path

import pytest

from qkvflow.cli import main
from qkvflow.cli.evaluation import with_error
from qkvflow.errors import one_line
from qkvflow.paths import cache_dir

NINES = "9" * 400
LONG = "x" * 300
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(8)
)
TINY = (
    *("--model.d_model", "8", "--model.num_steps", "1", "--model.num_heads", "1"),
    *("--model.context", "8", "--steps", "2", "--train.batch_size", "2"),
)
WORDS = {
    "date": ["--model.size", "2001-99-99"],
    "tag": ["--model.d_model", "!!int abc"],
    "digits": ["--model.d_model", NINES],
    "depths": ["--train.eval_depths", NINES],
    "infinite": ["--model.mlp_ratio", "1e300"],
    "wide": ["--model.d_model", "1e18"],
    "batch": ["--train.batch_size", "1e18"],
    "deep": ["--model.prelude", "9223372036854775807"],
    "nobody": ["--data", "file:~nosuchuser/x"],
    "long data": ["--data", f"file:{LONG}"],
    "bpe": ["--tokenizer", "bpe:" + "9" * 20],
    "long plugin": ["--plugin", f"{LONG}.py"],
    "null": ["--plugin", "\0.py"],
    "mixers": ["--model.block", "+".join(["attention"] * 5001)],
    "long value": ["--model.name", "y" * 10_000],
}
CONFIGS = {
    "date": "model: {size: 2001-99-99}",
    "tag": "model: !!int abc",
    "keys": "model: {1: 2}",
    "digits": f"model: {{d_model: {NINES}}}",
    "bomb": BOMB,
    "bomb below": "model:\n" + "".join(f"  {line}\n" for line in BOMB.splitlines()),
    "deep": "[" * 5000,
    "deep mappings": "model: " + "{a: " * 2000 + "1" + "}" * 2000,
    "list": "train: [1]",
    "null": "model: \0",
}
TOKENIZERS = {
    "empty": {"version": "1.0", "model": {"type": "WordLevel", "vocab": {}, "unk_token": "x"}},
    "far": {"model": {"type": "WordLevel", "vocab": {"a": 4294967294}, "unk_token": "a"}},
    "added": {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 1 << 40}]},
    "kind": {"qkvflow": [1]},
    "nothing": None,
}
PLANS = {
    "models": "models: 3",
    "seeds": "seeds: {a: 1}",
    "many seeds": "seeds: 1000000000",
    "questions": "questions: 7",
    "dates": "models: 2001-01-01",
    "data": "data: 3",
    "train": "train: [1]",
}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the depth is a flow of weights\n" * 200)
    return path


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    begin = time.monotonic()
    try:
        code = main(list(words))
    except SystemExit as left:
        code = left.code
    said = capsys.readouterr().err
    assert code == 2
    assert said.startswith("qkvflow: ")
    assert said.count("\n") == 1
    assert len(said) < 700
    assert time.monotonic() - begin < 30
    return said


def train(text: Path, *words: str) -> tuple[str, ...]:
    data = ("--data", f"file:{text}?split=0.8,0.1,0.1")
    return ("train", *data, *TINY, "--out", str(text.parent / "run"), *words)


@pytest.mark.parametrize("name", WORDS)
def test_words(name: str, text: Path, capsys: pytest.CaptureFixture[str]):
    refused(capsys, *train(text, *WORDS[name]))
    assert not (text.parent / "run").exists()


@pytest.mark.parametrize("name", CONFIGS)
def test_configurations(name: str, text: Path, capsys: pytest.CaptureFixture[str]):
    path = text.parent / "config.yaml"
    path.write_text(CONFIGS[name])
    said = refused(capsys, *train(text, "--config", str(path)))
    assert str(path) in said or name == "list"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers(name: str, text: Path, capsys: pytest.CaptureFixture[str]):
    path = text.parent / "odd.json"
    path.write_text(json.dumps(TOKENIZERS[name]))
    assert "is not a tokenizer.json" in refused(capsys, *train(text, "--tokenizer", str(path)))


def test_a_tokenizer_nested_too_deeply(text: Path, capsys: pytest.CaptureFixture[str]):
    path = text.parent / "odd.json"
    path.write_text("[" * 100_000)
    refused(capsys, *train(text, "--tokenizer", str(path)))


@pytest.mark.parametrize("name", PLANS)
def test_plans(name: str, text: Path, capsys: pytest.CaptureFixture[str]):
    path = text.parent / "plan.yaml"
    path.write_text(f"budget: {{steps: 2}}\n{PLANS[name]}\n")
    out = str(text.parent / "compared")
    refused(capsys, "compare", "--config", str(path), "--dry-run", "--out", out)


def test_numbers_that_no_computer_counts_in(capsys: pytest.CaptureFixture[str]):
    assert "--vocab is too large a number" in refused(capsys, "models", "--vocab", NINES)


def test_what_is_echoed_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]):
    assert "\\x1b[31m" in refused(capsys, "eval", "\x1b[31m")


def test_words_too_many_are_named(capsys: pytest.CaptureFixture[str]):
    assert "a word too many: 'b'" in refused(capsys, "eval", "a", "b")
    refused(capsys, "eval", "a", "\t")


def test_no_models_are_not_the_default_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ("compare", "--models", "", "--steps", "2", "--dry-run", "--out", str(tmp_path / "c"))
    assert "--models names no model" in refused(capsys, *words)


@pytest.mark.parametrize("mesh", ["data=100000", "data=" + "9" * 50, "data=0"])
def test_a_mesh_of_a_city(mesh: str, capsys: pytest.CaptureFixture[str]):
    refused(capsys, "plan", "--mesh", mesh)


@pytest.mark.parametrize("verb", ["eval", "resume", "analyze", "sweep-depth", "lm-eval", "export"])
def test_directories_that_are_none(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    more = {"lm-eval": ("--tasks", "a"), "export": ("--to", str(tmp_path / "to"))}.get(verb, ())
    for name in ("[red]absent[/red]", LONG, "absent"):
        said = refused(capsys, verb, str(tmp_path / name), *more)
        assert str(tmp_path)[:20] in said


def test_an_empty_cache_variable_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("QKVFLOW_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert cache_dir("tokens") == tmp_path / "home" / "qkvflow" / "tokens"
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_one_window_has_no_error_to_print():
    assert with_error({"nats": 1.0, "standard_error": float("nan")}) == "1.0000"
    assert with_error({"nats": 1.0, "standard_error": None}) == "1.0000"
    assert with_error({"nats": 1.0, "standard_error": 0.5}) == "1.0000 ± 0.5000"


def test_what_is_echoed_is_one_line():
    assert one_line("a\n  b\tc") == "a b c"
    assert len(one_line("x" * 10_000)) == 600


def test_ctrl_c_that_a_library_turns_into_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def stopped(*_: object) -> int:
        try:
            raise KeyboardInterrupt
        finally:
            raise zlib.error("Error -2 while flushing: inconsistent stream state")

    monkeypatch.setattr("qkvflow.cli._run_verb", stopped)
    assert main(["models"]) == 130
    assert capsys.readouterr().err == "qkvflow: interrupted\n"

    def broken(*_: object) -> int:
        raise zlib.error("damaged")

    monkeypatch.setattr("qkvflow.cli._run_verb", broken)
    with pytest.raises(zlib.error, match="damaged"):
        main(["models"])
