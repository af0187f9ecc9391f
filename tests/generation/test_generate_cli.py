"""The verb: streamed text, JSON, batches, and one line for every mistake."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sharp_models import TINY, VOCAB, prompt_of, tiny

from qkvflow.cli import generate as verb
from qkvflow.cli import main
from qkvflow.data.tokenizers import CharTokenizer
from qkvflow.generation import generate
from qkvflow.runs import load
from qkvflow.zoo import ModelConfig

# Characters of one to four bytes.
TOKENIZER = CharTokenizer("\nabcdefghijklé€😀𝕏")
PROMPT = TOKENIZER.decode(prompt_of(5))


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TOKENIZER.vocab_size == VOCAB
    config = ModelConfig(d_model=TINY["d_model"], num_heads=2)
    found = SimpleNamespace(
        model=tiny("tong"),
        tokenizer=TOKENIZER,
        config=SimpleNamespace(model=SimpleNamespace(config=config)),
        step=1,
    )
    monkeypatch.setattr(load, "load", lambda path, *, step: found)


def expected(tokens: int, **options: Any) -> str:
    [new] = generate(tiny("tong"), [prompt_of(5)], num_tokens=tokens, **options)
    return TOKENIZER.decode(new)


@pytest.mark.usefixtures("trained")
def test_text_and_closing_line(capsys: pytest.CaptureFixture[str]):
    assert main(["generate", "run", "--prompt", PROMPT, "--tokens", "12", "--seed", "3"]) == 0
    out, err = capsys.readouterr()
    assert out == PROMPT + expected(12, temperature=0.8, seed=3) + "\n"
    assert err.startswith("12 tokens, ")
    assert err.count("\n") == 1
    assert "ms to the first token" in err


@pytest.mark.usefixtures("trained")
def test_drafts_and_early_exit_in_json(capsys: pytest.CaptureFixture[str]):
    common = ["generate", "run", "--prompt", PROMPT, "--tokens", "12", "--greedy", "--json"]
    text = expected(12, temperature=0.0)
    assert main([*common, "--draft-steps", "1", "--draft-length", "2"]) == 0
    drafted = json.loads(capsys.readouterr().out)
    assert drafted["text"] == text
    assert drafted["prompt"] == PROMPT
    assert 0.0 <= drafted["acceptance_rate"] <= 1.0
    assert "speedup" not in drafted
    assert main([*common, "--early-exit", "entropy=0"]) == 0
    exited = json.loads(capsys.readouterr().out)
    assert exited["text"] == text
    assert (exited["average_depth"], exited["agreement"]) == (2.0, 1.0)


@pytest.mark.usefixtures("trained")
@pytest.mark.parametrize("benchmark", [False, True])
def test_text_is_generated_again_only_to_time_it(
    benchmark: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    passes = []
    parts = verb._parts
    monkeypatch.setattr(
        verb, "_parts", lambda *given: passes.append(given[2].draft_steps) or parts(*given)
    )
    drafts = ["--draft-steps", "1", "--draft-length", "2", "--tokens", "6"]
    asked = ["--benchmark"] if benchmark else []
    assert main(["generate", "run", "--prompt", PROMPT, *drafts, *asked]) == 0
    assert passes == ([1, 1, 1, None, None] if benchmark else [1])
    assert ("times as fast" in capsys.readouterr().err) == benchmark


@pytest.mark.usefixtures("trained")
def test_a_file_of_prompts(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    file = tmp_path / "prompts.txt"
    prompts = ["abc", "é€", PROMPT.replace("\n", "a")]
    file.write_text("\n".join(prompts) + "\n", "utf-8")
    options = ["--tokens", "12", "--greedy", "--batch-size", "1"]
    assert main(["generate", "run", "--prompts", str(file), *options, "--json"]) == 0
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["prompt"] for row in rows] == prompts
    tokens = [TOKENIZER.encode(prompt).tolist() for prompt in prompts]
    made = generate(tiny("tong"), tokens, num_tokens=12, temperature=0.0, batch_size=1)
    assert [row["text"] for row in rows] == [TOKENIZER.decode(new) for new in made]
    assert "3 prompts, 36 tokens" in err
    file.write_text("abc\n\nabc\n")
    assert main(["generate", "run", "--prompts", str(file)]) == 2
    assert "line 2" in capsys.readouterr().err


@pytest.mark.usefixtures("trained")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--prompt", ""], "prompt is empty"),
        (["--prompt", "z"], "'z' is not in the alphabet"),
        (["--tokens", "0"], "--tokens must be at least 1"),
        (["--tokens", "99"], "learned positions"),
        (["--temperature", "-1"], "temperature"),
        (["--top-p", "0"], "top_p"),
        (["--top-p", "1.1"], "top_p"),
        (["--top-k", "0"], "top_k"),
        (["--scheme", "heum"], "did you mean heun"),
        (["--tolerance", "1"], "adaptive"),
        (["--num-steps", "0"], "num_steps"),
        (["--draft-steps", "2", "--tokens", "9"], "draft steps"),
        (["--draft-steps", "1", "--window"], "--draft-steps"),
        (["--benchmark"], "--benchmark times --draft-steps"),
        (["--early-exit", "entropie=1"], "early exit rule"),
        (["--early-exit", "change=x", "--tokens", "9"], "needs a number"),
        (["--prompts", "nowhere.txt"], "cannot read"),
        (["--checkpoint", "first"], "--checkpoint"),
        (["--prompt", "a", "--prompts", "some.txt"], "--prompt and --prompts exclude"),
        (["--greedy", "--temperature", "2"], "--greedy and --temperature exclude"),
        (["--draft-length", "7"], "--draft-length is of --draft-steps"),
        (["--batch-size", "8"], "--batch-size is of --prompts"),
    ],
)
def test_mistakes(options: list[str], reason: str, capsys: pytest.CaptureFixture[str]):
    assert main(["generate", "run", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert reason in err
    assert err.count("\n") == 1


def test_a_prompt_that_looks_like_an_option(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["generate", "run", "--prompt", "-a"])
    assert ended.value.code == 2
    assert "one that begins with - is written --prompt=-..." in capsys.readouterr().err


def test_no_such_run(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert main(["generate", str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err
