"""n-gram models on the same splits: what counting alone achieves."""

from typing import Any

from qkvflow.data import EncodedCorpus
from qkvflow.evaluation.ngrams import MOST_TOKENS, SMOOTHINGS, NgramModel, mean_losses

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
    tokens = encoded.train.tokens[:train_tokens]
    model = NgramModel.fit(tokens, encoded.tokenizer.vocab_size, ORDERS)
    entries = []
    for smoothing in SMOOTHINGS:
        losses = {
            name: mean_losses(model, getattr(encoded, name).tokens, smoothing=smoothing, k=ADD_K)
            for name in ("validation", "test")
        }
        entries += [
            {
                "order": order + 1,
                "smoothing": smoothing,
                **{name: each[order] for name, each in losses.items()},
            }
            for order in range(ORDERS)
        ]
    return {"train_tokens": train_tokens, "ngrams": entries}
