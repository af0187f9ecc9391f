"""Our tokenizers as files of Hugging Face: the same ids, without code of ours."""

import json
from pathlib import Path
from typing import Any

import tokenizers as hf

from qkvflow.data.tokenizers.base import Tokenizer
from qkvflow.data.tokenizers.bpe import SubwordTokenizer
from qkvflow.data.tokenizers.byte import ByteTokenizer
from qkvflow.data.tokenizers.char import UNKNOWN, CharTokenizer
from qkvflow.errors import UserError


def write_huggingface(tokenizer: Tokenizer, directory: Path, context: int) -> dict[str, Any]:
    """Write `tokenizer.json` and `tokenizer_config.json`; returns the ids of special tokens as a
    model's `config.json` has them."""
    backend, special = _backend(tokenizer)
    backend.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": context}
    content = json.dumps({**settings, "clean_up_tokenization_spaces": False, **special}, indent=1)
    (directory / "tokenizer_config.json").write_text(content + "\n", encoding="utf-8")
    return {
        f"{name}_id": backend.token_to_id(token)
        for name, token in special.items()
        if name in ("bos_token", "eos_token", "pad_token")
    }


def _backend(tokenizer: Tokenizer) -> tuple[hf.Tokenizer, dict[str, Any]]:
    """The same tokenizer in the library, and its special tokens."""
    if isinstance(tokenizer, SubwordTokenizer):
        if tokenizer.pretrained is not None:
            return tokenizer.backend, tokenizer.pretrained["special"]
        if tokenizer.separator is None:
            return tokenizer.backend, {}
        return tokenizer.backend, {"eos_token": tokenizer.backend.id_to_token(tokenizer.separator)}
    if isinstance(tokenizer, ByteTokenizer):
        # GPT-2's letters for bytes: those that are printed stand for themselves, the rest follow.
        printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [each for each in range(256) if each not in printed]
        letters = dict(zip(printed, map(chr, printed), strict=True))
        letters |= {byte: chr(256 + index) for index, byte in enumerate(others)}
        backend = hf.Tokenizer(hf.models.BPE({letters[byte]: byte for byte in range(256)}, []))
        backend.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = hf.decoders.ByteLevel()
        return backend, {}
    if isinstance(tokenizer, CharTokenizer):
        unknown = UNKNOWN if UNKNOWN not in tokenizer.alphabet else "<unk>"
        symbols = [*tokenizer.alphabet, *[unknown] * tokenizer.unknown]
        table = {each: index for index, each in enumerate(symbols)}
        backend = hf.Tokenizer(hf.models.WordLevel(table, unk_token=unknown))
        backend.pre_tokenizer = hf.pre_tokenizers.Split(hf.Regex(r"[\s\S]"), "isolated")
        backend.decoder = hf.decoders.Fuse()
        return backend, {"unk_token": unknown} if tokenizer.unknown else {}
    raise UserError(f"no tokenizer of Hugging Face is like '{tokenizer.name}'; export without it")
