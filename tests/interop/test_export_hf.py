"""`qkvflow export --format hf`: fields leave as stacks of layers that `transformers` loads."""

import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers as hf
from jaxtyping import Array
from test_pretrained_import import small_tokenizer
from tiny_models import randomised

from qkvflow import load
from qkvflow.data import ByteTokenizer
from qkvflow.data.tokenizers._huggingface import write_huggingface
from qkvflow.data.tokenizers.bpe import SubwordTokenizer
from qkvflow.data.tokenizers.char import CharTokenizer
from qkvflow.errors import UserError
from qkvflow.interop import unrolled
from qkvflow.lm import LanguageModel, build_config
from qkvflow.runs.config import make_config
from qkvflow.runs.export import write_export
from qkvflow.runs.load import Trained
from qkvflow.runs.pretrained import import_pretrained
from qkvflow.zoo import names

TINY = {"d_model": 16, "num_heads": 2, "num_steps": 2, "context": 16, "mlp_ratio": 2.0}
TINY |= {"d_time": 6, "num_frequencies": 3, "d_state": 4, "ssm_head_dim": 8, "init_std": 0.3}
LEAVING: dict[str, tuple[str, str, dict[str, Any]]] = {
    "standard": ("gpt2", "standard", {}),
    "shared": ("gpt2", "shared", {"scheme": "euler", "bias": False}),
    "time-indexed-mlp": ("gpt2", "time-indexed-mlp", {"lora": "qkv:depth", "lora_rank": 2}),
    "low-rank": ("gpt2", "low-rank", {"prelude": 1, "coda": 1, "horizon": 3.0}),
    "basis": ("gpt_neox", "basis", {"positions": "rope", "rotary_fraction": 0.5}),
    "standard-llama": ("llama", "standard-llama", {"head_dim": 6, "num_kv_heads": 1}),
    "qwen3": ("qwen3", "standard-llama", {"qk_norm": True, "field": "basis", "tied": True}),
    "mamba": ("mamba2", "mamba", {"field": "shared"}),
    "cycle": ("gpt2", "cycle", {"layers_per_loop": 2, "activation": "gelu"}),
    "tong": ("gpt_neox", "tong", {"positions": "rope", "horizon": 2.0}),
    "hybrid": ("gpt_neox", "hybrid", {"positions": "none", "frozen_time": 0.3}),
}
"""Model type, entry of the zoo and options."""
STAYING = {
    "tong": "gpt-neox needs positions rope or none, not learned",
    "hybrid": "gpt-neox needs positions rope or none, not learned",
    "tong-llama": "llama needs composition sequential, not parallel",
    "huginn": "injection concat",
    "parcae": "injection diagonal",
    "ouro": "has a final norm; this model has none",
    "universal": "scale_embedding",
    "loopformer": "norms elsewhere",
    "time-indexed-ssm": "the block attention",
    "time-indexed-selective-ssm": "the block attention",
    "ode-ssm": "the block attention",
}


def trained_of(name: str, **options: Any) -> Trained:
    config = make_config({"model": {"name": name, **TINY, **options}})
    model = build_config(config.model.config, vocab_size=256, key=jax.random.key(0))
    return Trained(randomised(model, 0.1), ByteTokenizer(), config)


@eqx.filter_jit
def run(model: LanguageModel, tokens: Array) -> Array:
    return model(tokens)


def greedy(model: LanguageModel, prompt: list[int], length: int) -> list[int]:
    """Tokens after a prompt, to that length; causal models do not see what is still 0."""
    text = np.zeros((1, length), np.int32)
    text[0, : len(prompt)] = prompt
    for place in range(len(prompt), length):
        text[0, place] = int(jnp.argmax(run(model, jnp.asarray(text))[0, place - 1]))
    return text[0].tolist()


@pytest.mark.peers
@pytest.mark.parametrize("case", LEAVING)
def test_transformers_loads_every_field(case: str, tmp_path: Path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from hf_peers import logits_of

    model_type, name, options = LEAVING[case]
    trained, out = trained_of(name, **options), tmp_path / "out"
    write_export(trained, out, None, "hf")
    assert json.loads((out / "config.json").read_text())["model_type"] == model_type
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        out, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokens = np.random.default_rng(0).integers(0, 256, (1, 16)).astype(np.int32)
    ours, found = run(trained.model, jnp.asarray(tokens)), logits_of(theirs.eval(), tokens)
    assert found.std() > 0.1
    assert np.abs(ours - found).max() < 1e-4

    words = transformers.AutoTokenizer.from_pretrained(out)
    text = "é\n\ta\0"
    prompt = words(text, return_tensors="pt").input_ids
    assert prompt[0].tolist() == trained.tokenizer.encode(text).tolist()
    made = theirs.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=8
    )
    expected = greedy(trained.model, prompt[0].tolist(), 16)[: made.shape[1]]
    assert made[0].tolist() == expected
    assert words.decode(made[0]) == trained.tokenizer.decode(expected)


def test_every_entry_leaves_or_is_refused(tmp_path: Path):
    leaving = {name for _, name, _ in LEAVING.values()}
    for name in sorted({*STAYING, *names()} - leaving | {"tong", "hybrid"}):
        with pytest.raises(UserError, match=STAYING.get(name, "no stack of layers")):
            write_export(trained_of(name, num_kv_heads=None), tmp_path / name, None, "hf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", ["low-rank", "tong", "cycle"])
def test_back_again(case: str, tmp_path: Path):
    """Exported, imported: an ordinary stack of layers with the same logits and tokens."""
    _, name, options = LEAVING[case]
    trained = trained_of(name, **options)
    tokens = jnp.arange(24, dtype=jnp.int32).reshape(2, 12)
    expected = run(trained.model, tokens)
    same, plain = unrolled(trained.model, trained.config.model.config)
    assert (plain.field, plain.scheme, plain.prelude) == ("per-layer", "residual", 0)
    write_export(trained, tmp_path / "theirs", None, "hf")
    import_pretrained(tmp_path / "theirs", tmp_path / "ours")
    back = load(tmp_path / "ours")
    assert back.model.num_steps == same.num_steps
    # One program serves both: they are the same kind of model.
    for model in (same, back.model):
        assert np.abs(run(model, tokens) - expected).max() < 1e-4
    assert back.tokenizer.vocab_size == 256
    assert back.tokenizer.encode("é\0").tolist() == trained.tokenizer.encode("é\0").tolist()
    card = (tmp_path / "theirs" / "README.md").read_text()
    assert "library_name: transformers" in card
    assert f"`{LEAVING[case][0]}`" in card
    assert "block weights" in card


def test_an_alphabet_may_have_the_mark_of_the_unknown(tmp_path: Path):
    tokenizer = CharTokenizer("ab\ufffd", unknown=True)
    write_huggingface(tokenizer, tmp_path, 12)
    theirs = hf.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.encode("a\ufffdz").ids == tokenizer.encode("a\ufffdz").tolist() == [0, 2, 3]


@pytest.mark.peers
def test_tokenizers_are_the_same_in_transformers(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    special = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": "{{ messages }}"}
    own = SubwordTokenizer(
        small_tokenizer(True), name="x", pretrained={"vocab_size": 23, "special": special}
    )
    for index, (tokenizer, text) in enumerate(
        [
            (own, "abba  cab"),
            (CharTokenizer("\n abc", unknown=True), "a cab\n\nzé"),
            (ByteTokenizer(), " \r\n\u2603 tab\t"),
        ]
    ):
        (directory := tmp_path / str(index)).mkdir()
        ids = write_huggingface(tokenizer, directory, 12)
        theirs = transformers.AutoTokenizer.from_pretrained(directory)
        expected = tokenizer.encode(text).tolist()
        assert theirs.encode(text, add_special_tokens=False) == expected
        assert theirs.encode(text) == [*tokenizer.prefix, *expected]
        every = list(range(21 if tokenizer is own else tokenizer.vocab_size))
        for some in (expected, every):
            assert theirs.decode(some) == tokenizer.decode(some)
        assert theirs.model_max_length == 12
        if tokenizer is own:
            assert (theirs.bos_token, theirs.eos_token_id) == ("<s>", 1)
            assert theirs.chat_template == "{{ messages }}"
            assert ids == {"bos_token_id": 0, "eos_token_id": 1}
