"""Help that begins with examples, names that people type, and hints that help."""

import re
import shlex

import pytest

from qkvflow.cli import VERBS, _as_option, main, parser_of
from qkvflow.cli.examples import EXAMPLES
from qkvflow.cli.options import ALIASES, SHORT
from qkvflow.cli.parser import nearest
from qkvflow.runs.sections import SECTIONS


def help_of(verb: str, option: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([verb, option])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def test_help_fits_a_screen_and_begins_with_examples(capsys: pytest.CaptureFixture[str]):
    short = help_of("train", "--help", capsys)
    assert len(short.splitlines()) < 40
    assert short.index("qkvflow train --size tiny") < short.index("options:")
    assert short.count("options:") == 1
    whole = help_of("train", "--help-all", capsys)
    named = set(re.findall(r"^  (--[\w.-]+)", whole, re.MULTILINE))
    fields = {f"--{name}.{field}" for name in SECTIONS for field in SECTIONS[name]().__dict__}
    assert fields | {"--model.d_model", "--plugin", "--mesh", "--learning-rate", "--wandb"} <= named


@pytest.mark.parametrize("verb", EXAMPLES)
def test_examples_parse(verb: str):
    assert verb in VERBS
    for example in EXAMPLES[verb]:
        program, said, *words = shlex.split(example)
        assert (program, said) == ("qkvflow", verb)
        parser_of(verb).parse_args([_as_option(word) for word in words])


def test_names_that_people_type():
    parser = parser_of("train")
    for alias, option in ALIASES.items():
        given = parser.parse_args(["--out", "x", alias, "3"]).overrides
        assert given == parser.parse_args(["--out", "x", option, "3"]).overrides
        assert given == [(SHORT[option][0], "3")]
    words = ["--out", "x", "--track", "tensorboard", "--wandb", _as_option("--batch_size"), "4"]
    assert parser.parse_args(words).overrides == [
        ("track.name", "wandb"),
        ("train.batch_size", "4"),
    ]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--learning-rat", ["--learning-rate"]),
        ("--dropout", ["--model.dropout"]),
        ("--weight-decay", ["--optim.weight_decay"]),
        ("--optim.lrr", ["--optim.lr", "--lr"]),
        ("--n-layer", ["--layers"]),
        ("--block_size", ["--context"]),
        ("--epochs", ["--tokens"]),
        ("--zzz", []),
    ],
)
def test_what_was_meant(typed: str, meant: list[str]):
    assert nearest(typed, parser_of("train")._option_string_actions) == meant


def test_nothing_near_names_the_list(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--out", "x", "--zzz", "1"])
    assert stopped.value.code == 2
    said = "qkvflow: unknown option '--zzz'; qkvflow train --help-all lists them\n"
    assert capsys.readouterr().err == said


def test_models_of_other_libraries(capsys: pytest.CaptureFixture[str]):
    assert main(["train", "--model", "gpt2", "--out", "x"]) == 2
    said = capsys.readouterr().err
    assert "'standard'" in said
    assert "qkvflow import hf:" in said
