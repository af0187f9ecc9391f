"""n-gram models on the same splits: what counting alone achieves."""

from typing import Any

from qkvflow.data import EncodedCorpus
from qkvflow.evaluation.ngrams import MOST_TOKENS, SMOOTHINGS, ngram_losses

ORDERS = 5
ADD_K = 0.1


def measure_baselines(encoded: EncodedCorpus, seen_tokens: int | None = None) -> dict[str, Any]:
    """The content of `baselines.json`: orders 1 to 5, both smoothings, in nats per token.

    Counted on the train split and, under `seen`, on as many tokens as the models train on where
    that is less.
    """
    counted = min(len(encoded.train), MOST_TOKENS)
    content = {**_counts(encoded, counted), "add_k": ADD_K}
    if seen_tokens is not None and seen_tokens < counted:
        content["seen"] = _counts(encoded, seen_tokens)
    return content


def _counts(encoded: EncodedCorpus, train_tokens: int) -> dict[str, Any]:
    rows = ngram_losses(encoded, ORDERS, SMOOTHINGS, k=ADD_K, max_tokens=train_tokens)
    return {"train_tokens": train_tokens, "ngrams": rows}
