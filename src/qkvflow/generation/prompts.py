"""What is asked for: checked prompts, batches of similar lengths, how far back a model looks."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from qkvflow.errors import UserError
from qkvflow.lm import LanguageModel

SPAN = 32
"""Prompts in one batch differ in length by less than this."""


def check(
    model: LanguageModel, prompts: Sequence[Sequence[int]] | Any, num_tokens: int, *, window: bool
) -> list[list[int]]:
    """The prompts as lists, or the reason why they cannot be continued; nothing has run yet."""
    if num_tokens < 1:
        raise UserError(f"the number of tokens must be at least 1, not {num_tokens}")
    texts = [np.asarray(prompt).reshape(-1).tolist() for prompt in prompts]
    for text in texts:
        if not text:
            raise UserError("the prompt is empty; give at least one token to continue")
        for token in text:
            if not (isinstance(token, int) and 0 <= token < model.vocab_size):
                raise UserError(
                    f"token {token} is not in the model's vocabulary of {model.vocab_size}"
                )
    longest = max(map(len, texts), default=0)
    if window or longest + num_tokens <= model.context:
        return texts
    if model.positions is not None:
        raise UserError(
            f"a prompt of {longest} and {num_tokens} new tokens do not fit this model's "
            f"{model.context} learned positions; ask for fewer tokens or a sliding "
            "window (--window)"
        )
    warnings.warn(
        f"going on to {longest + num_tokens} tokens, beyond the {model.context} "
        "this model was trained on",
        stacklevel=3,
    )
    return texts


def groups(texts: list[list[int]], batch_size: int, lanes: int = 1) -> list[list[int]]:
    """Indices of prompts that are run together: of similar length, and so many that `lanes` groups
    at once are at most `batch_size` sequences, or one each."""
    if batch_size < 1:
        raise UserError(f"batch_size must be at least 1, not {batch_size}")
    batch_size = -(-min(batch_size, len(texts)) // lanes)
    by_length: dict[int, list[int]] = {}
    for index, text in enumerate(texts):
        by_length.setdefault(len(text) // SPAN, []).append(index)
    return [
        members[start : start + batch_size]
        for _, members in sorted(by_length.items())
        for start in range(0, len(members), batch_size)
    ]


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


class Window:
    """Which tokens a prediction looks at.

    Without a window, all before it. With one, at most `context`: when they are full, the oldest
    block of half a context is dropped and the rest fed again from position 0, so that
    a prediction sees between half a context and a whole one. Where the window starts
    depends on the position alone, not on the prompt, the batch or the number of tokens asked for.
    """

    def __init__(self, model: LanguageModel, sliding: bool, total: int):
        self.context, self.sliding = model.context, sliding
        self.block = max(1, model.context // 2)
        limited = sliding or model.positions is not None
        self.length = min(total, model.context) if limited else total
        """Slots in the caches, when all tokens are there."""

    def offset(self, seen: int) -> int:
        """The first token that the prediction after `seen` tokens looks at."""
        if not self.sliding or seen <= self.context:
            return 0
        return round_up(seen - self.context, self.block)

    def end(self, seen: int) -> int:
        """Up to how many tokens can be seen before the window moves."""
        return self.offset(seen) + self.context + 1 if self.sliding else 1 << 60
