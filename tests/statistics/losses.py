"""Records made of losses, for tests of what is computed from them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from qkvflow.records import Record, Records
from qkvflow.statistics import compare_pairs

GOOD = [1.90, 1.95, 1.88, 1.93, 1.91]
BAD = [2.01, 2.04, 1.99, 2.05, 2.00]
NOISY = [1.85, 2.10, 1.80, 1.99, 1.84]


def run(label: str, seed: int, loss: float | None, **changes: Any) -> Record:
    losses = None
    if loss is not None:
        losses = {"nats": loss, "bits_per_byte": loss / math.log(2), "perplexity": math.exp(loss)}
    content = {
        "model": {"name": label},
        "data": {
            "tokenizer": "bytes",
            "vocab_size": 256,
            "splits": {split: {"sha256": split} for split in ("train", "validation", "test")},
        },
        "budget": {"steps": 10, "tokens": 100, "flops": 1000, "seconds": 1.0},
        "training": {"batch_size": 8, "context": 128},
        "losses": {"validation": losses, "test": losses},
    }
    return Record(label, seed, finished=True, error=None, content=content | changes)


def failure(label: str, seed: int, error: str = "diverged") -> Record:
    return Record(label, seed, finished=False, error=error, content={})


def records(
    models: Mapping[str, Sequence[float | None]], failed: Sequence[Record] = (), **changes: Any
) -> Records:
    finished = [
        run(label, seed, loss, **changes.get(label, {}))
        for label, losses in models.items()
        for seed, loss in enumerate(losses)
    ]
    return Records(finished=tuple(finished), failed=tuple(failed))


def only_pair(found: Records, **options: Any) -> dict[str, Any]:
    pairs = compare_pairs(found, **options)["pairs"]
    assert len(pairs) == 1
    return pairs[0]
