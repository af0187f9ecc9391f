"""What the tests support, and what a reader must be warned of.

Nothing here computes a statistic: a model is called best only where every verdict of
`significance_tests.json` says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qkvflow.records import finite
from qkvflow.report import numbers
from qkvflow.report.content import Group, Model, Report

MINIMUM_SEEDS = 3


@dataclass(frozen=True)
class Caution:
    """One line. `serious` means that a conclusion may be wrong, not merely limited."""

    text: str
    serious: bool = False


def best(report: Report, group: int) -> str | None:
    """The model that is better than every other model of its group, or None."""
    labels = [m.label for m in report.of(group) if m.metric(report.metric)["mean"] is not None]
    for label in labels:
        others = [other for other in labels if other != label]
        if others and all(_winner(report, label, other) == label for other in others):
            return label
    return None


def unbeaten(report: Report, group: int) -> list[str]:
    """The models that were tested and not shown to be worse than any other, lowest loss first."""
    labels = [model.label for model in report.of(group)]
    kept = []
    for label in labels:
        kinds = [(report.pair(label, o)[0]["verdict"], o) for o in labels if o != label]
        tested = [verdict for verdict, _ in kinds if verdict["kind"] != "not-testable"]
        if tested and all(verdict["better"] in (None, label) for verdict in tested):
            kept.append(label)
    return kept


def _winner(report: Report, a: str, b: str) -> str | None:
    return report.pair(a, b)[0]["verdict"]["better"]


def before_answer(question: str | None) -> str:
    """A question before its answer: one that ends in words needs a colon."""
    if not question:
        return ""
    return f"{question}: " if question[-1].isalnum() else f"{question} "


def headlines(report: Report) -> list[str]:
    """One sentence for each group of comparable models."""
    lines = []
    for number, group in enumerate(report.groups):
        where = f" on {group.title}" if len(report.groups) > 1 else ""
        lines.append(_headline(report, number, where))
    return lines


def _headline(report: Report, group: int, where: str) -> str:
    models = [m for m in report.of(group) if m.metric(report.metric)["mean"] is not None]
    if not models:
        return (
            f"No run{where} has finished with a {report.metric} loss: there is nothing to compare."
        )
    if len(models) == 1:
        return f"Only one model{where} has results, {models[0].label}: there is nothing to compare."
    winner = best(report, group)
    if winner is not None:
        return f"{winner} is better than every other model{where}."
    kept = unbeaten(report, group)
    if not kept:
        return (
            f"Nothing can be concluded{where}: no pair of models has {MINIMUM_SEEDS} seeds each"
            " that can be tested."
        )
    if len(kept) == len(models):
        return f"No model{where} is shown to be worse than any other."
    if len(kept) == 1:
        return f"{kept[0]} is the only model{where} not shown to be worse than any other."
    return f"No single best model{where}: {_listed(kept)} are not shown to be worse than any other."


def reference(report: Report) -> str | None:
    """The model that leads the list of verdicts: the plan's, else `standard`, else the lowest."""
    labels = [model.label for model in report.models]
    for wanted in (report.plan.get("reference"), "standard", *labels):
        if wanted in labels:
            return str(wanted)
    return None


def leading_verdicts(report: Report) -> list[Mapping[str, Any]]:
    """The pairs to read first: those of the reference, by the loss of the other model."""
    lead = reference(report)
    if lead is None:
        return []
    others = [m.label for m in report.of(report.model(lead).group) if m.label != lead]
    return [report.pair(lead, other)[0] for other in others]


def beside_trigram(model: Model, group: Group, split: str) -> str | None:
    """`worse` than a trigram, `unclear`, or None when the model beats it or nothing is known."""
    trigram = group.ngram(3, split)
    summary = model.metric(split)
    limit = None if trigram is None else trigram.losses[split]
    if limit is None or summary["mean"] is None:
        return None
    if summary["mean"] >= limit:
        return "worse"
    high = summary["t_interval"]["high"]
    return "unclear" if high is not None and high >= limit else None


def cautions(report: Report) -> list[Caution]:
    """Serious ones first."""
    lines = [
        *_about_trigrams(report),
        *_about_models(report),
        *_about_rates(report),
        *_about_seeds(report),
        *_about_rules(report),
    ]
    lines += [Caution(note) for note in (*report.records.notes, *report.missing)]
    return sorted(lines, key=lambda caution: not caution.serious)


_BESIDE = {
    "worse": "Not better than a trigram ({limit} nats), so broken or under-trained: {models}.",
    "unclear": "Not shown to beat a trigram ({limit} nats), which their intervals reach: {models}.",
}


def _about_trigrams(report: Report) -> list[Caution]:
    """For every corpus, one line on all models that its trigram beats and one on the unclear."""
    split, lines = report.metric, []
    for number, group in enumerate(report.groups):
        trigram = group.ngram(3, split)
        for beside, text in _BESIDE.items():
            found = [m for m in report.of(number) if beside_trigram(m, group, split) == beside]
            if found and trigram is not None:
                limit = numbers.loss(trigram.losses[split])
                models = [f"{m.label} ({numbers.loss(m.metric(split)['mean'])})" for m in found]
                text = text.format(limit=limit, models=_listed(models))
                lines.append(Caution(text, serious=True))
    return lines


def _about_models(report: Report) -> list[Caution]:
    split, lines = report.metric, []
    for model in report.models:
        group, mean = report.groups[model.group], model.metric(report.metric)["mean"]
        floor = None if group.floor is None else group.floor.losses[split]
        if floor is not None and mean is not None and mean < floor - 0.005:
            lines.append(
                Caution(
                    f"{model.label} is below the entropy of the data ({numbers.loss(mean)} against"
                    f" {numbers.loss(floor)} nats): it has seen what it should predict.",
                    serious=True,
                )
            )
        if model.skipped_updates:
            lines.append(
                Caution(
                    f"{model.label}: {model.skipped_updates} updates were skipped because the loss"
                    " or gradient was not finite."
                )
            )
    falling = [model.label for model in report.models if model.still_falling]
    if falling:
        who = "every model" if len(falling) == len(report.models) else _listed(falling)
        lines.append(
            Caution(
                f"Validation loss was still at its lowest at the last evaluation of {who}:"
                " the ranking is that of this budget and may change with more training."
            )
        )
    return lines


def _about_rates(report: Report) -> list[Caution]:
    lines = []
    given = [model for model in report.models if model.rates.used and not model.rates.tried]
    used = {model.rates.used for model in given}
    if len(given) > 1 and len(used) == 1:
        lines.append(
            Caution(
                f"One learning rate, {used.pop():g}, was given to all and chosen for none: a model"
                " that wants another is at a disadvantage. --tune lr chooses one for each."
            )
        )
    for end, beyond in (("lowest", "below"), ("highest", "above")):
        found = [m.label for m in report.models if m.rates.edge == end]
        if found:
            lines.append(
                Caution(
                    f"The {end} learning rate that was tried is the best for {_listed(found)}:"
                    f" a better one may lie {beyond} the grid.",
                    serious=True,
                )
            )
    return lines


def _about_seeds(report: Report) -> list[Caution]:
    lines = []
    few = [m.label for m in report.models if 0 < len(m.seeds) < MINIMUM_SEEDS]
    if few:
        lines.append(
            Caution(
                f"Fewer than {MINIMUM_SEEDS} seeds finished for {_listed(few)}:"
                " no interval and no test is possible.",
                serious=True,
            )
        )
    for model in report.models:
        if not model.seeds:
            lines.append(Caution(f"No run of {model.label} finished.", serious=True))
        elif model.summary["failed"] or model.summary["unfinished"]:
            failed, still = len(model.summary["failed"]), len(model.summary["unfinished"])
            parts = [f"{failed} failed"] * bool(failed) + [f"{still} not finished"] * bool(still)
            lines.append(
                Caution(
                    f"{model.label}: {' and '.join(parts)}, {len(model.seeds)} used."
                    " Runs that fail need not be like those that do not.",
                    serious=bool(failed),
                )
            )
    sizes = [finite(pair["detectable"]["corrected"]) for pair in report.pairs]
    known = sorted(size for size in sizes if size is not None)
    if known:
        family = report.tests["all_pairs"]
        middle = known[len(known) // 2]
        lines.append(
            Caution(
                f"With these seeds, after correction for {report.corrected_for}, a difference of"
                f" {known[0]:.4f} (most similar pair) to {known[-1]:.4f} nats (noisiest pair),"
                f" typically {middle:.4f}, would be detected with"
                f" {100 * family['power']:g} % power. Smaller ones are likely to go unnoticed."
            )
        )
    return lines


def _about_rules(report: Report) -> list[Caution]:
    lines = []
    if report.metric == "validation":
        lines.append(
            Caution(
                "These are validation losses. Checkpoints were chosen on them, so they are"
                " slightly optimistic.",
                serious=True,
            )
        )
    if len(report.groups) > 1:
        lines.append(
            Caution(
                "The models were evaluated on different data or tokenizers. Losses compare only"
                " within a group.",
                serious=True,
            )
        )
    caveats = dict.fromkeys(
        line
        for pair in report.pairs
        for line in pair["verdict"]["caveats"]
        if "agree neither" in line
    )
    if len(caveats) > 3:
        lines.append(
            Caution(
                f"{len(caveats)} pairs agree neither in steps, tokens, FLOPs nor seconds spent:"
                " part of their difference is budget.",
                serious=True,
            )
        )
    else:
        lines += [Caution(f"{line}: part of their difference is budget.", True) for line in caveats]
    return lines


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
