"""`qkvflow models`: the zoo as a table and as JSON."""

import json
from typing import Any

import pytest

import qkvflow
from qkvflow.cli import main
from qkvflow.zoo import PUBLISHED


def rows(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    assert main(["models", "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_json(capsys: pytest.CaptureFixture[str]):
    found = rows(capsys)
    assert [row["name"] for row in found] == qkvflow.names()
    for row in found:
        assert {type(row[key]) for key in ("field", "block", "scheme")} == {str}
        assert set(row["params"]) == {"total", "embedding", "blocks", "head"}
        assert row["params"]["total"] == sum(
            row["params"][part] for part in ("embedding", "blocks", "head")
        )
        flops = row["flops_per_token"]
        assert 0 < flops["forward"] < flops["training"]
        assert row["weights_in_effect"] > 0
    by_name = {row["name"]: row for row in found}
    assert by_name["standard"]["scheme"] == "residual, sequential"
    assert by_name["tong"]["scheme"] == "euler, parallel"
    assert by_name["mamba"]["scheme"] == "residual"
    assert by_name["standard"]["weights_in_effect"] == by_name["standard"]["params"]["blocks"]


def test_published(capsys: pytest.CaptureFixture[str]):
    found = rows(capsys, "--published")
    assert [row["name"] for row in found] == list(PUBLISHED)
    for row in found:
        assert row["published"] == row["params"]["total"] == PUBLISHED[row["name"]][1]


def test_sizes_and_vocabulary(capsys: pytest.CaptureFixture[str]):
    small, large = (rows(capsys, "standard", "--size", size)[0] for size in ("small", "large"))
    assert large["params"]["blocks"] > 50 * small["params"]["blocks"]
    assert (small["context"], large["context"]) == (512, 2048)
    wide = rows(capsys, "standard", "--vocab", "1000")[0]
    assert wide["params"]["total"] - small["params"]["total"] == 256 * (1000 - 256)


def test_table(capsys: pytest.CaptureFixture[str]):
    assert main(["models", "standard", "tong", "published/tong"]) == 0
    text = capsys.readouterr().out
    for word in ("standard", "hypernet", "attention+mlp", "euler, parallel", "51,512,960"):
        assert word in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["standrd"], "unknown model 'standrd'; did you mean standard"),
        (["standard", "--size", "hug"], "unknown size 'hug'"),
        (["standard", "--vocab", "0"], "--vocab must be positive"),
    ],
)
def test_mistakes(options: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["models", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("qkvflow: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_misspelt_option(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        main(["models", "--jsn"])
    assert caught.value.code == 2
    assert "did you mean --json" in capsys.readouterr().err


def test_misspelt_verb(capsys: pytest.CaptureFixture[str]):
    assert main(["model"]) == 2
    assert "did you mean models" in capsys.readouterr().err
