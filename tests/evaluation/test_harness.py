"""The harness's model: against plain passes, our own evaluation, and in whole tasks, offline."""

import copy
import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.special import log_softmax
from sharp_models import TINY, VOCAB, full_logits, prompt_of, tiny

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # What the harness's own imports have to say.
    from qkvflow.evaluation.harness import HarnessModel

from qkvflow.cli import main
from qkvflow.data import TokenArray
from qkvflow.data.tokenizers import CharTokenizer
from qkvflow.distributed import memory
from qkvflow.errors import UserError
from qkvflow.evaluation.losses import evaluate
from qkvflow.generation import generate
from qkvflow.runs.config import make_config
from qkvflow.runs.export import write_export
from qkvflow.runs.load import Trained

TOKENIZER = CharTokenizer("\nabcdefghijklmnop")
CONTEXT = TINY["context"]
MODEL = tiny("standard")


def text_of(length: int, seed: int = 0) -> str:
    return TOKENIZER.decode(prompt_of(length, seed))


def harness(batch_size: int = 3) -> HarnessModel:
    assert TOKENIZER.vocab_size == VOCAB
    return HarnessModel(MODEL, TOKENIZER, batch_size=batch_size)


def our_nats(text: str) -> float:
    """By our own evaluation, after the same prefix."""
    tokens = TOKENIZER.encode("\n" + text)
    split = TokenArray(tokens, 1, len(tokens), len(tokens), "")
    ours = evaluate(MODEL, split, batch_size=2)
    assert ours.tokens == len(text)
    return ours.nats


def continued(prompt: str, length: int) -> str:
    """Greedily, by our own generation."""
    start = TOKENIZER.encode(prompt).tolist()
    return TOKENIZER.decode(generate(MODEL, [start], num_tokens=length, temperature=0.0)[0])


def request(*args: Any) -> Any:
    return SimpleNamespace(args=args)


def alone(context: str, continuation: str) -> tuple[float, bool]:
    """By one full forward pass and SciPy."""
    before, after = (TOKENIZER.encode(each).tolist() for each in (context or "\n", continuation))
    logits = log_softmax(full_logits(MODEL, (before + after)[-CONTEXT - 1 : -1]), axis=-1)
    rows = logits[-len(after) :]
    greedy = rows.argmax(axis=-1).tolist() == after
    return float(rows[np.arange(len(after)), after].sum()), greedy


def test_log_likelihoods_of_continuations():
    """Short and long, beyond the context, after nothing, and greedy ones; more than a batch."""
    # The harness moves a line break at the end of a context into the continuation.
    one, two, three, prompt = (text_of(n, n) + "d" for n in (5, 11, 60, 4))
    pairs = [(one, "abc"), (two, "p"), (three, "nop"), ("", "kl")]
    pairs.append((prompt, continued(prompt, 3)))
    found = harness().loglikelihood([request(*pair) for pair in pairs], disable_tqdm=True)
    for pair, (value, greedy) in zip(pairs, found, strict=True):
        expected = alone(*pair)
        assert abs(value - expected[0]) < 1e-4
        assert greedy == expected[1]
    assert found[-1][1]
    assert not all(greedy for _, greedy in found)
    with pytest.raises(UserError, match="longer than the model's context"):
        harness().loglikelihood([request("a", text_of(40))], disable_tqdm=True)


@pytest.mark.parametrize("length", [CONTEXT, 4 * CONTEXT, 7])
def test_rolling_log_likelihood_is_our_evaluation(length: int):
    text = text_of(length, 5)
    found = harness().loglikelihood_rolling([request(text), request("abc")])
    assert abs(-found[0] / length - our_nats(text)) < 1e-4
    assert abs(found[1] - alone("", "abc")[0]) < 1e-4


def test_the_last_window_is_shifted_back():
    """As the harness defines it: each token once, the last ones with all the context there is."""
    text = text_of(CONTEXT + 3, 6)
    found = harness().loglikelihood_rolling([request(text)])[0]
    first = alone("", text[:CONTEXT])[0]
    last = alone(text[2:CONTEXT], text[CONTEXT:])[0]
    assert abs(found - (first + last)) < 1e-4


def test_generation_until_a_string():
    prompts = [text_of(5, 7), text_of(9, 8)]
    whole = [continued(each, 20) for each in prompts]
    options = {"until": [whole[0][6:8], "\n\n\n"], "max_gen_toks": 20}
    asked = [request(prompts[0], options), request(prompts[1], {"max_gen_toks": 20, "until": []})]
    found = harness().generate_until(asked)
    assert found[0] == whole[0][: whole[0].index(whole[0][6:8])]
    assert found[1] == whole[1]


def test_generation_stops_where_a_document_ends():
    tokenizer, prompt = copy.copy(TOKENIZER), text_of(5, 7)
    whole = continued(prompt, 20)
    tokenizer.separator = int(TOKENIZER.encode(whole[6])[0])
    model = HarnessModel(MODEL, tokenizer, batch_size=3)
    [found] = model.generate_until([request(prompt, {"max_gen_toks": 20, "until": []})])
    assert found == whole[: whole.index(whole[6])]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Local tasks of all three kinds, with their data."""
    folder = tmp_path_factory.mktemp("tasks")
    questions = [
        {"q": text_of(6, seed), "choices": ["abc", "nop", "hij"], "answer": seed % 3}
        for seed in range(5)
    ]
    rows = {
        "choice": questions,
        "perplexity": [{"text": text_of(2 * CONTEXT, seed)} for seed in range(3)],
        "generation": [
            {"q": text_of(5, 0), "a": continued(text_of(5, 0), 4).split("\n")[0]},
            {"q": text_of(5, 1), "a": "xyz"},
        ],
    }
    kinds = {
        "choice": {
            "output_type": "multiple_choice",
            "doc_to_text": "{{q}}",
            "doc_to_choice": "choices",
            "doc_to_target": "answer",
            "metric_list": [{"metric": "acc"}],
        },
        "perplexity": {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "byte_perplexity"}],
        },
        "generation": {
            "output_type": "generate_until",
            "doc_to_text": "{{q}}",
            "doc_to_target": "{{a}}",
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4},
            "metric_list": [{"metric": "exact_match"}],
        },
    }
    for name, data in rows.items():
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in data))
        task = {
            "task": f"local_{name}",
            "dataset_path": "json",
            "dataset_kwargs": {
                "data_files": {"test": str(path)},
                "cache_dir": str(folder / "cache"),
            },
            "test_split": "test",
            "target_delimiter": "",
            **kinds[name],
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))
    return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = make_config({"model": {"name": "standard", **TINY}})
    out = tmp_path_factory.mktemp("exports") / "model"
    write_export(Trained(MODEL, TOKENIZER, config), out, None)
    return out


@pytest.mark.filterwarnings("ignore")  # Of the harness and its libraries.
def test_whole_tasks_offline(
    tasks: Path, exported: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    names = "local_choice,local_perplexity,local_generation"
    words = ["lm-eval", str(exported), "--tasks", names, "--include-path", str(tasks)]
    assert main([*words, "--out", str(tasks / "out.json"), "--batch-size", "4"]) == 0
    said = capsys.readouterr().out
    results = json.loads((tasks / "out.json").read_text())["results"]
    rows = [json.loads(line) for line in (tasks / "choice.jsonl").read_text().splitlines()]
    right = [
        int(np.argmax([alone(row["q"], each)[0] for each in row["choices"]])) == row["answer"]
        for row in rows
    ]
    assert results["local_choice"]["acc,none"] == pytest.approx(np.mean(right))
    texts = [text_of(2 * CONTEXT, seed) for seed in range(3)]
    perplexity = results["local_perplexity"]["byte_perplexity,none"]
    assert abs(np.log(perplexity) - np.mean([our_nats(text) for text in texts])) < 1e-4
    # The first answer is what the model says, the second is not.
    assert results["local_generation"]["exact_match,none"] == 0.5
    assert f"acc: {np.mean(right):.4f}" in said
    assert "local_choice (5 examples, 0-shot)" in said


@pytest.mark.filterwarnings("ignore")
def test_mistakes(tasks: Path, exported: Path, capsys: pytest.CaptureFixture[str]):
    for words, said in (
        (["--tasks", ","], "--tasks must name tasks"),
        (["--tasks", "local_choice", "--include-path", "absent"], "is not a directory"),
        (["--tasks", "local_choice", "--limit", "0"], "--limit must be positive"),
    ):
        assert main(["lm-eval", str(exported), *words]) == 2
        err = capsys.readouterr().err
        assert said in err, err


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("text", "said"),
    [([1], "(in doc_to_text)"), ("{{ absent.more }}", "'absent' is undefined")],
)
def test_a_task_that_the_harness_cannot_use(
    text: Any, said: str, tasks: Path, exported: Path, tmp_path: Path, capfd: Any, monkeypatch: Any
):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    task = yaml.safe_load((tasks / "choice.yaml").read_text())
    (tmp_path / "odd.yaml").write_text(yaml.safe_dump({**task, "doc_to_text": text}))
    words = ["--tasks", "local_choice", "--include-path", str(tmp_path)]
    assert main(["lm-eval", str(exported), *words]) == 2
    told = capfd.readouterr().err
    last = told.splitlines()[-1]
    assert last.startswith(f"qkvflow: the harness cannot use local_choice of {tmp_path} (in ")
    assert said in last
    assert "git" not in told


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("task", "what"),
    [("choice", "a batch of 15 sequences"), ("generation", "generating 2 sequences")],
)
def test_what_does_not_fit_is_refused_before_it_runs(
    task: str, what: str, tasks: Path, exported: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setattr(memory, "memory_limit", lambda: 1000)
    words = ["--tasks", f"local_{task}", "--include-path", str(tasks), "--batch-size", "1000000000"]
    assert main(["lm-eval", str(exported), *words]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"qkvflow: out of memory: {what} of ")
    assert " GB and there are 0.0 GB; " in said
    monkeypatch.undo()
    # As many at once as there are take no more than that.
    assert main(["lm-eval", str(exported), *words]) == 0


def test_prefix_and_names():
    assert harness().prefix_token_id == TOKENIZER.encode("\n")[0] == 0
    assert harness().tok_encode("abc") == [1, 2, 3]
