"""Accuracy on the answers of probes: one table for each group of models, for page, print and
terminal alike."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qkvflow.report import numbers
from qkvflow.report.content import Report

NOTE = (
    "Share of answer tokens that are right on the {split} split, mean over seeds, with its 95 % t"
    " interval where there are seeds enough. Levels with a star were not trained on. Chance: a"
    " guess among the symbols that an answer can be. The best possible loss of the text is {floor}"
    " nats per token."
)


@dataclass(frozen=True)
class Probe:
    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Models, then chance."""
    note: str


def probes(report: Report) -> list[Probe]:
    """Of the groups whose models answer any."""
    made = []
    for number in range(len(report.groups)):
        found = {
            model.label: each
            for model in report.of(number)
            if (each := model.summary.get("accuracy"))
        }
        if not found:
            continue
        first = next(iter(found.values()))
        levels = {
            each["level"]: each for probe in found.values() for each in reversed(probe["levels"])
        }
        names = [f"{n}{'' if levels[n]['trained'] else '*'}" for n in sorted(levels)]
        chance = ["chance", _percent(first["all"]["chance"])]
        chance += [_percent(levels[n]["chance"]) for n in sorted(levels)]
        made.append(
            Probe(
                f"Answers{report.suffix(number)}",
                ("Model", "All", *(f"{first['difficulty']} {name}" for name in names)),
                (*(_row(label, each, sorted(levels)) for label, each in found.items()), (*chance,)),
                NOTE.format(split=first["split"], floor=numbers.loss(first["floor"])),
            )
        )
    return made


def _row(label: str, probe: Mapping[str, Any], levels: list[int]) -> tuple[str, ...]:
    by_level = {each["level"]: each for each in probe["levels"]}
    return label, _cell(probe["all"]), *(_cell(by_level.get(level)) for level in levels)


def _cell(found: Mapping[str, Any] | None) -> str:
    if found is None or found["mean"] is None:
        return numbers.ABSENT
    ends = found["t_interval"]
    if ends["low"] is None:
        return _percent(found["mean"])
    low, high = (_percent(min(max(ends[key], 0.0), 1.0)) for key in ("low", "high"))
    return f"{_percent(found['mean'])} ({low} to {high})"


def _percent(share: float | None) -> str:
    return numbers.ABSENT if share is None else f"{100 * share:.1f} %"
