"""Which losses compare with each other, and what stands beside them.

A loss per token means something on one text with one tokenizer. Models are grouped by both; each
group has its n-gram baselines and, where the data's entropy rate is known, its floor.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qkvflow.records import Curve, Records, finite
from qkvflow.report.content import Baseline, Group
from qkvflow.report.numbers import short
from qkvflow.statistics import evaluated_on

SPLITS: tuple[str, ...] = ("validation", "test")
_NAMES = {1: "unigram", 2: "bigram", 3: "trigram"}


def groups_of(
    records: Records,
    counts: Mapping[Path, Mapping[str, Any]],
    curves: Mapping[str, Mapping[int, Curve]],
    metric: str,
) -> list[Group]:
    """The groups in order of labels. A model none of whose runs finished is in the first."""
    members: dict[tuple[Any, ...], list[str]] = {}
    for label in records.labels:
        if records.of(label):
            text = evaluated_on(records.of(label)[0], metric)
            members.setdefault(text, []).append(label)
    groups = []
    for labels in members.values() or [[]]:
        runs = [run for label in labels for run in records.of(label)]
        data = runs[0].section("data") if runs else {}
        places = dict.fromkeys(run.experiment for run in runs if run.experiment is not None)
        contents = [counts.get(place, {}) for place in places]
        found = [_ngrams(each, data) for each in contents]
        baselines = next((ngrams for ngrams in found if ngrams), [])
        baselines += [
            replace(each, seen=True)
            for content in contents
            for each in _ngrams(content.get("seen") or {}, data)
            if each.name not in {other.name for other in baselines}
        ]
        floor = finite(data.get("floor"))
        if floor is not None:
            losses: dict[str, float | None] = dict.fromkeys(SPLITS, floor)
            baselines.append(
                Baseline("entropy of the data", None, None, losses, _bits(losses, data))
            )
        if not groups:
            labels = labels + [label for label in records.labels if not records.of(label)]
        curves_here = [curve for label in labels for curve in curves[label].values()]
        groups.append(
            Group(
                title=f"{data.get('spec', 'unknown data')}, tokenizer {data.get('tokenizer', '?')}",
                data=data,
                labels=tuple(labels),
                baselines=tuple(baselines),
                thresholds=_thresholds(baselines, curves_here),
            )
        )
    return groups


def _ngrams(content: Mapping[str, Any], data: Mapping[str, Any]) -> list[Baseline]:
    """One baseline per order: the smoothing that is better on validation.

    One that has counted less than the train split (`evaluation.baselines`) says so.
    """
    counted = finite(content.get("train_tokens"))
    all_there_is = finite(((data.get("splits") or {}).get("train") or {}).get("tokens"))
    part = counted is not None and all_there_is is not None and counted < all_there_is
    of_part = f" (first {short(counted)} tokens)" if part else ""
    best: dict[int, Baseline] = {}
    for entry in content.get("ngrams") or ():
        if finite(entry.get("order")) is None:
            continue
        order = int(entry["order"])
        losses = {split: finite(entry.get(split)) for split in SPLITS}
        name = _NAMES.get(order, f"{order}-gram") + of_part
        each = Baseline(name, order, entry.get("smoothing"), losses, _bits(losses, data))
        if order not in best or _selected(each) < _selected(best[order]):
            best[order] = each
    return [best[order] for order in sorted(best)]


def _selected(baseline: Baseline) -> float:
    loss = baseline.losses["validation"]
    return math.inf if loss is None else loss


def _bits(losses: Mapping[str, float | None], data: Mapping[str, Any]) -> dict[str, float | None]:
    """Nats per token as bits per byte of the same split."""
    bits: dict[str, float | None] = {}
    for split, nats in losses.items():
        sizes = (data.get("splits") or {}).get(split) or {}
        tokens, size = finite(sizes.get("tokens")), finite(sizes.get("bytes"))
        bits[split] = None
        if nats is not None and tokens is not None and size:
            bits[split] = nats * tokens / size / math.log(2)
    return bits


def _thresholds(baselines: Iterable[Baseline], curves: Iterable[Curve]) -> dict[float, str]:
    """Validation losses worth timing: a trigram's, and the best loss of the worst run."""
    wanted: dict[float, str] = {}
    trigrams = [b.losses["validation"] for b in baselines if b.order == 3 and not b.seen]
    known = [loss for loss in trigrams if loss is not None]
    if known:
        wanted[min(known)] = "the trigram's loss"
    lowest = []
    for curve in curves:
        losses = [finite(line.get("loss")) for line in curve.validation]
        lowest += [min(loss for loss in losses if loss is not None)] if any(losses) else []
    if lowest:
        wanted.setdefault(max(lowest), "the loss that every run reached")
    return wanted
