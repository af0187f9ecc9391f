"""Tokens as the text of a completion, where words have their space in front."""

import numpy as np
import tokenizers as hf

from qkvflow.data.tokenizers.bpe import SubwordTokenizer
from qkvflow.serving.engine import Scores
from qkvflow.serving.protocol import Limits, read
from qkvflow.serving.text import Choice


def sentencepiece() -> SubwordTokenizer:
    """Words with their space, which the first of a text loses, after a start token: as Llama 2."""
    words = ["<unk>", "<s>", "</s>", "▁Hello", "▁a", "▁time"]
    models = hf.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    backend = hf.Tokenizer(models)
    scheme = {"replacement": "▁", "prepend_scheme": "always"}
    backend.pre_tokenizer = hf.pre_tokenizers.Metaspace(**scheme)
    parts = [hf.decoders.Replace("▁", " "), hf.decoders.Fuse(), hf.decoders.Strip(" ", 1, 0)]
    backend.decoder = hf.decoders.Sequence(parts)
    start = {"single": "<s> $A", "special_tokens": [("<s>", 1)]}
    backend.post_processor = hf.processors.TemplateProcessing(**start)
    backend.add_special_tokens(["<s>", "</s>"])
    special = {"vocab_size": len(words), "special": {"eos_token": "</s>"}}
    return SubwordTokenizer(backend, name="words", pretrained=special)


def test_a_word_after_a_prompt_has_its_space():
    tokenizer = sentencepiece()
    prompt = tokenizer.encode_prompt("Hello a")
    assert prompt == [1, 3, 4]
    assert tokenizer.decode_after(prompt, [5, 4]) == " time a"
    assert tokenizer.decode_after(tokenizer.prefix, [5, 4]) == "time a"


def test_an_echoed_prompt_has_each_token_once():
    tokenizer = sentencepiece()
    limits = Limits("words", 64, tokenizer.vocab_size, 3, 12, 64, 4)
    asked = read(
        {"prompt": "Hello a", "echo": True, "logprobs": 0, "max_tokens": 3}, tokenizer, limits
    )

    def scores(first: int, count: int) -> Scores:
        return Scores(-np.arange(first, first + count), np.zeros((count, 0)), np.zeros((count, 0)))

    choice = Choice(tokenizer, asked, 0)
    pieces = [choice.push([5], scores(0, 4)), choice.push([4, 5], scores(4, 2))]
    assert "".join(piece.text for piece in pieces) == "Hello a time a time"
    lists = [piece.logprobs or {} for piece in pieces]
    assert [x for each in lists for x in each["token_logprobs"]] == [None, -1, -2, -3, -4, -5]
    assert [x for each in lists for x in each["text_offset"]] == [0, 0, 5, 7, 12, 14]
