"""`qkvflow import`: a Hugging Face directory, with its tokenizer, for every other verb."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers as hf
from hf_cases import read_golden
from safetensors.numpy import save_file
from scipy.special import log_softmax

from qkvflow import load
from qkvflow.cli import main
from qkvflow.data.tokenizers import load_tokenizer
from qkvflow.errors import UserError
from qkvflow.generation import generate
from qkvflow.runs.pretrained import import_pretrained

LETTERS = "abcdefghijklmnop"


def small_tokenizer(start: bool) -> hf.Tokenizer:
    """21 ids, fewer than the 23 of the models; with `start`, texts begin with <s>."""
    vocab = {"<s>": 0, "</s>": 1, **{each: i + 2 for i, each in enumerate(LETTERS)}}
    backend = hf.Tokenizer(hf.models.BPE({**vocab, "Ġ": 18, "ab": 19, "Ċ": 20}, [("a", "b")]))
    backend.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = hf.decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    if start:
        backend.post_processor = hf.processors.TemplateProcessing(
            "<s> $A", special_tokens=[("<s>", 0)]
        )
    return backend


def write_checkpoint(directory: Path, name: str, start: bool = True) -> Any:
    golden = read_golden(name)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({**golden.settings, "eos_token_id": [1, 0]}))
    save_file(golden.tensors, directory / "model.safetensors")
    small_tokenizer(start).save(str(directory / "tokenizer.json"))
    described = {"bos_token": {"content": "<s>"}, "tokenizer_class": "PreTrainedTokenizerFast"}
    described |= {"chat_template": "{{ messages }}", "unk_token": None}
    (directory / "tokenizer_config.json").write_text(json.dumps(described))
    return golden


@pytest.mark.parametrize(("name", "start"), [("gpt2", False), ("llama-4-to-2", True)])
def test_a_directory_becomes_one_of_ours(name: str, start: bool, tmp_path: Path, capsys: Any):
    golden = write_checkpoint(tmp_path / "theirs", name, start)
    assert main(["import", str(tmp_path / "theirs"), "--out", str(tmp_path / "ours")]) == 0
    assert "context 12, vocabulary 23" in capsys.readouterr().out
    trained = load(tmp_path / "ours")
    logits = np.asarray(trained.model(jnp.asarray(golden.tokens)))
    assert np.abs(logits - golden.logits).max() < 1e-4
    words = trained.tokenizer
    assert (words.vocab_size, words.separator) == (23, 1)
    assert words.prefix == ((0,) if start else ())
    assert words.encode("ab c").tolist() == [19, 18, 4]
    assert words.encode_prompt("ab") == [*words.prefix, 19]
    assert words.encode_prompt("") == [0 if start else 1]
    assert words.decode([0, 19, 18, 4, 1]) == "<s>ab c</s>"
    # What a run that begins from it keeps is the same.
    again = load_tokenizer(words.save(tmp_path))
    assert (again.identity, again.vocab_size, again.prefix) == (words.identity, 23, words.prefix)
    assert "Imported from `theirs`" in (tmp_path / "ours" / "README.md").read_text()

    assert main(["eval", str(tmp_path / "ours")]) == 2
    assert "name one with --data" in capsys.readouterr().err
    assert main(["import", str(tmp_path / "theirs"), "--out", str(tmp_path / "ours")]) == 2
    assert "exists already; choose another --out" in capsys.readouterr().err


def test_verbs_take_it(tmp_path: Path, capsys: Any):
    write_checkpoint(tmp_path / "theirs", "gpt2")
    ours, tuned, text = (str(tmp_path / name) for name in ("ours", "tuned", "text.txt"))
    letters = np.random.default_rng(0).choice([*LETTERS, " "], 3000)
    Path(text).write_text("".join(letters))
    assert main(["import", str(tmp_path / "theirs"), "--out", ours, "--context", "8"]) == 0
    data = ["--data", f"file:{text}"]
    assert main(["eval", ours, *data, "--json"]) == 0
    before = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert before["results"][0]["context"] == 8
    few = ["--steps", "2", "--batch-size", "2", "--quiet", "--train.samples", "none"]
    assert main(["finetune", ours, "--out", tuned, *data, *few]) == 0
    found = json.loads((Path(tuned) / "finetune.json").read_text())
    assert found["new_data"]["frozen"] == pytest.approx(before["results"][0]["nats"], abs=1e-4)
    assert found["first_data"] is None
    assert load(tuned).tokenizer.vocab_size == 23
    assert main(["generate", tuned, "--prompt", "abc", "--tokens", "3", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.startswith("abc")


def imported(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "theirs", "llama-4-to-2")
    assert main(["import", str(tmp_path / "theirs"), "--out", str(tmp_path / "ours")]) == 0
    return tmp_path / "ours"


@pytest.mark.filterwarnings("ignore")  # Of the harness and its libraries.
def test_the_harness_takes_it(tmp_path: Path, capsys: Any, monkeypatch: Any):
    """Its bits per byte are those of a plain pass, after the token that texts begin with."""
    pytest.importorskip("lm_eval")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    ours, rows, text = imported(tmp_path), tmp_path / "rows.jsonl", "abc pob ba"
    rows.write_text(json.dumps({"text": text}) + "\n")
    files = {"data_files": {"test": str(rows)}, "cache_dir": str(tmp_path / "cache")}
    task = {"task": "letters", "dataset_path": "json", "dataset_kwargs": files}
    task |= {"output_type": "loglikelihood_rolling", "test_split": "test", "doc_to_text": ""}
    task |= {"doc_to_target": "{{text}}", "metric_list": [{"metric": "bits_per_byte"}]}
    (tmp_path / "letters.yaml").write_text(json.dumps(task))
    capsys.readouterr()
    words = ["lm-eval", str(ours), "--tasks", "letters", "--include-path", str(tmp_path), "--json"]
    assert main(words) == 0
    out = capsys.readouterr().out
    results = json.loads(out[out.index("{") :])["results"]["letters"]
    trained = load(ours)
    tokens = trained.tokenizer.encode_prompt(text)
    assert tokens[0] == 0
    log_p = log_softmax(np.asarray(trained.model(jnp.asarray(tokens[:-1]))), axis=-1)
    bits = -log_p[np.arange(len(tokens) - 1), tokens[1:]].sum() / np.log(2) / len(text)
    assert results["bits_per_byte,none"] == pytest.approx(bits, rel=1e-5)


def test_the_server_takes_it(tmp_path: Path):
    """Under the directory's name, and with the text of `generate`."""
    pytest.importorskip("uvicorn")
    ours = imported(tmp_path)
    command = [sys.executable, "-m", "qkvflow", "serve", str(ours), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line.startswith("serving ours on http://127.0.0.1:"), line or server.communicate()
        asked = {"model": "ours", "prompt": "abc", "max_tokens": 6, "temperature": 0}
        done = httpx.post(f"{line.split()[-1]}/v1/completions", json=asked, timeout=120).json()
    finally:
        server.terminate()
        assert server.communicate(timeout=60)[1] == ""
    trained = load(ours)
    prompt = trained.tokenizer.encode_prompt("abc")
    [tokens] = generate(trained.model, [prompt], num_tokens=6, temperature=0.0)
    assert done["choices"][0]["text"] == trained.tokenizer.decode(tokens)
    assert done["usage"]["prompt_tokens"] == len(prompt) == 3


def test_what_cannot_be_imported(tmp_path: Path):
    theirs = tmp_path / "theirs"
    write_checkpoint(theirs, "gpt2")
    out = tmp_path / "ours"
    with pytest.raises(UserError, match="--context must be 1 to 12, not 13"):
        import_pretrained(theirs, out, context=13)
    with pytest.raises(UserError, match="--revision is for hf:"):
        import_pretrained(theirs, out, revision="main")
    with pytest.raises(UserError, match="is not a directory; give a Hugging Face directory"):
        import_pretrained(tmp_path / "nowhere", out)
    large = small_tokenizer(False)
    large.add_tokens(["more", "still more", "much more"])
    large.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match="ids up to 23, the model only 23"):
        import_pretrained(theirs, out, tokenizer=tmp_path)
    (theirs / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"there is no .*tokenizer\.json; save it with"):
        import_pretrained(theirs, out)
    assert not out.exists()


def test_a_cached_snapshot_is_enough_without_a_network(tmp_path: Path):
    """`hf:owner/name` in the layout of the Hub's cache."""
    pytest.importorskip("huggingface_hub")
    place, commit = tmp_path / "models--owner--name", "0" * 40
    write_checkpoint(place / "snapshots" / commit, "gpt2")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    where = {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    program = (
        "import sys; from qkvflow.cli import main\n"
        f"ours, other = {str(tmp_path / 'ours')!r}, {str(tmp_path / 'other')!r}\n"
        "first = main(['import', 'hf:owner/name', '--out', ours])\n"
        "sys.exit(10 * first + main(['import', 'hf:owner/absent', '--out', other]))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | where, capture_output=True, text=True
    )
    assert ran.returncode == 2, ran.stderr
    assert "cannot download owner/absent" in ran.stderr
    assert load(tmp_path / "ours").config.track.label == "hf:owner/name"
