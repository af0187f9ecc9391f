"""Tables and sentences of a report as Markdown, for pages that quote records."""

import shlex
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from qkvflow.errors import UserError, unknown
from qkvflow.report import numbers
from qkvflow.report.content import Model, Report
from qkvflow.report.findings import before_answer, leading_verdicts
from qkvflow.report.probes import probes as probe_tables
from qkvflow.report.scaling_law import laws_table, needs_table, sentences
from qkvflow.report.table import rows

MOST_TRIALS = 12
"""Of a grid that is shown whole."""
NOT_RUN = "<!-- not run: hours -->"


def table(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *body]
    return "\n".join(f"| {' | '.join(_escape(cell) for cell in line)} |" for line in lines)


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def losses(report: Report) -> str:
    """The models of each group by loss, and the n-grams of both countings below them."""
    made = []
    for number, group in enumerate(report.groups):
        own = [row for row in rows(report) if row.group == number and row.model is not None]
        optims = {row.label: _optimiser(report, row.label) for row in own}
        told = len(set(optims.values())) > 1 or bool(report.plan.get("tune"))
        heads = ["model", *["optimiser, rate"] * told, f"{report.metric} loss", "95 % interval"]
        heads += ["parameters", "block parameters", "training FLOPs per token", "seeds"]
        body = [
            [
                row.label,
                *[optims[row.label]] * told,
                numbers.loss(row.loss),
                numbers.interval(row.interval) or numbers.ABSENT,
                numbers.short(row.model.params["total"]),
                numbers.short(row.model.params["blocks"]),
                numbers.short(row.model.flops_per_token),
                _seeds(row.model),
            ]
            for row in own
            if row.model is not None
        ]
        title = [f"**{group.title}**"] * (len(report.groups) > 1)
        made += [*title, table(heads, body), *_ngrams(report, number)]
    return "\n\n".join(made)


def _optimiser(report: Report, label: str) -> str:
    found = [run.section("training").get("optim") or {} for run in report.records.of(label)]
    names = {f"{each.get('name')}, {each.get('lr'):g}" for each in found if each.get("lr")}
    return " or ".join(sorted(names)) or numbers.ABSENT


def _seeds(model: Model) -> str:
    failed = len(model.summary["failed"])
    return f"{len(model.seeds)}" + f" ({failed} failed)" * bool(failed)


def _ngrams(report: Report, number: int) -> list[str]:
    """A line for each counting: on the whole train split, and on what the models have seen."""
    group, lines = report.groups[number], []
    sizes = (group.data.get("splits") or {}).get("train") or {}
    for seen in (False, True):
        own = [b for b in group.baselines if b.order is not None and b.seen is seen]
        # Of merged studies with equal counts, once.
        unique = {b.order: b for b in own if b.losses[report.metric] is not None}
        known = list(unique.values())
        if known:
            part = known[0].name.partition(" (")[2].rstrip(")")
            counted = f"the {part}" if part else f"all {numbers.short(sizes.get('tokens'))} tokens"
            said = ", ".join(numbers.loss(b.losses[report.metric]) for b in known)
            orders = f"orders {known[0].order} to {known[-1].order}"
            lines.append(f"N-grams counted on {counted} of the train split, {orders}: {said}.")
    if group.floor is not None:
        lines.append(f"Entropy of the data: {numbers.loss(group.floor.losses[report.metric])}.")
    return lines


def verdicts(report: Report, pairs: Sequence[tuple[str, str]] = ()) -> str:
    """A sentence for each pair; without any, the plan's questions, or the reference's pairs."""
    asked = [(before_answer(q.name), pair) for q in report.questions for pair in q.pairs]
    chosen = [("", _pair(report, a, b)) for a, b in pairs] or asked
    chosen = chosen or [("", pair) for pair in leading_verdicts(report)]
    return "\n".join(f"- {name}{pair['verdict']['sentence']}" for name, pair in chosen)


def _pair(report: Report, a: str, b: str) -> Mapping[str, Any]:
    try:
        return report.pair(a, b)[0]
    except KeyError:
        raise UserError(f"there is no pair {a}:{b} in {report.directory.name}") from None


def differences(reports: Mapping[str, Report], pairs: Sequence[tuple[str, str]]) -> str:
    """The first model's loss less the second's, with its interval: a row for each pair, a column
    for each report. In bold where the verdict is that one is better: for a question of the plan
    corrected over its questions, else over all pairs."""
    if not pairs:
        raise UserError("differences are of pairs A:B; name one")
    body = []
    for a, b in pairs:
        cells = [_difference(report, a, b) for report in reports.values()]
        if set(cells) == {numbers.ABSENT}:
            raise UserError(f"there is no pair {a}:{b} in {', '.join(reports)}")
        body.append([f"{a} less {b}", *cells])
    return table(["difference", *reports], body)


def _difference(report: Report, a: str, b: str) -> str:
    if not {a, b} <= {model.label for model in report.models}:
        return numbers.ABSENT
    asked = [pair for question in report.questions for pair in question.pairs]
    pair, sign = report.pair(a, b)
    verdict = next((each for each in asked if {each["a"], each["b"]} == {a, b}), pair)["verdict"]
    estimate = pair["difference"]["estimate"]
    if estimate is None:
        return numbers.ABSENT
    cell = f"{sign * estimate:+.4f} ({value(report, 'interval', f'{a}:{b}')})"
    return f"**{cell}**" if verdict["kind"] in ("better", "worse") else cell


def curve(report: Report, points: int = 5) -> str:
    """Validation loss, mean over seeds, at evaluations that all models share."""
    bands = {model.label: model.validation for model in report.models if model.validation}
    if not bands:
        raise UserError("no run has a curve")
    shared = sorted(set.intersection(*(set(band.step.tolist()) for band in bands.values())))
    if not shared:
        raise UserError("the models were evaluated at different steps")
    places = np.unique(np.linspace(0, len(shared) - 1, points).round().astype(int))
    steps = [shared[place] for place in places]
    body = [
        [label, *(numbers.loss(float(np.interp(s, band.step, band.mean))) for s in steps)]
        for label, band in bands.items()
    ]
    return table(["validation loss at step", *(f"{step:.0f}" for step in steps)], body)


def probes(report: Report) -> str:
    """Accuracy on the answers of probes, by difficulty."""
    made = []
    for each in probe_tables(report):
        heads = [head.replace("*", "\\*") for head in each.heads]
        made.append(f"{table(heads, each.rows)}\n\n{each.note}")
    if not made:
        raise UserError("no run answers a probe")
    return "\n\n".join(made)


def depths(report: Report) -> str:
    """Losses of the trained models on other depth grids, mean over seeds."""
    found = {
        model.label: {(e.scheme, e.num_steps): e.mean for e in model.evaluations}
        for model in report.models
        if model.evaluations
    }
    if not found:
        raise UserError("no model was evaluated at other depths")
    places = dict.fromkeys(place for each in found.values() for place in each)
    heads = [f"{scheme}, {steps or 'adaptive'}" for scheme, steps in places]
    body = [[k, *(numbers.loss(each.get(p)) for p in places)] for k, each in found.items()]
    return table(["model", *heads], body)


def tuning(contents: Sequence[Mapping[str, Any]]) -> str:
    """What searches of one space found for each model, the best in bold: every trial of a grid,
    the best alone of others. The trials of one model in several searches are taken together."""
    keys = list(contents[0]["search"])
    if any(list(content["search"]) != keys for content in contents):
        raise UserError("these searches are over different options")
    found: dict[str, dict[tuple[Any, ...], float | None]] = {}
    for content in contents:
        for label, each in (content.get("models") or {"": content}).items():
            for trial in each["trials"]:
                place = tuple(trial["values"].get(key) for key in keys)
                found.setdefault(label, {})[place] = trial["loss"]
    places = dict.fromkeys(place for trials in found.values() for place in trials)
    shown = sorted(places, key=lambda place: [(str(type(v)), v) for v in place])
    if len(places) > MOST_TRIALS:
        shown = []
    body = []
    for label, trials in found.items():
        ended = [(loss, place) for place, loss in trials.items() if loss is not None]
        best = min(ended, default=(None, ()))
        cells = [numbers.loss(trials.get(place)) for place in shown]
        bold = [f"**{c}**" if p == best[1] else c for p, c in zip(shown, cells, strict=True)]
        alone = [*map(_value, best[1] or [None] * len(keys)), numbers.loss(best[0])]
        body.append([label, *(bold or alone)])
    names = [key.partition(".")[2] for key in keys]
    heads = [" ".join(map(_value, place)) for place in shown] or [*names, "validation loss"]
    return table([f"validation loss at {', '.join(names)}" if shown else "model", *heads], body)


def _value(value: Any) -> str:
    if value is None:
        return numbers.ABSENT
    return f"{value:g}" if isinstance(value, float) else str(value)


def scaling(content: Mapping[str, Any]) -> str:
    """The laws with their intervals, and what the runs leave open."""
    heads, body, note = laws_table(content)
    said = [f"- {line}" for line in sentences(content)]
    return "\n\n".join([table(heads, body), note, "\n".join(said)]).strip()


def grid(content: Mapping[str, Any]) -> str:
    """The losses of a scaling law's runs on the most tokens, mean over seeds."""
    most = max(point["tokens"] for point in content["points"])
    cells: dict[tuple[str, int], dict[int, list[float]]] = {}
    for point in content["points"]:
        if point["tokens"] == most:
            own = cells.setdefault((point["label"], point["width"]), {})
            own.setdefault(point["repeats"], []).append(point["loss"])
    steps = sorted({repeats for own in cells.values() for repeats in own})
    body = [
        [
            f"{label}, {width} wide",
            *(numbers.loss(fmean(own[n]) if n in own else None) for n in steps),
        ]
        for (label, width), own in cells.items()
    ]
    return table(["loss at", *(f"{n} steps" for n in steps)], body)


def needs(content: Mapping[str, Any]) -> str:
    """The parameters and FLOPs at which models are fitted to reach the reference's losses."""
    heads, body, note = needs_table(content)
    return f"{table(heads, body)}\n\n{note}"


def conversion(contents: Sequence[Mapping[str, Any]]) -> str:
    """What fitting fields to trained models lost, before any training: means over the models."""
    sources = [content["source"] for content in contents]
    body = [["original", numbers.short(sources[0]["blocks"]), numbers.loss(0.0), _nats(sources)]]
    for field in dict.fromkeys(content["field"] for content in contents):
        chosen = [
            size
            for content in contents
            for size in content["sizes"]
            if content["field"] == field and size["chosen"]
        ]
        residual = fmean(each["residuals"]["all"] for each in chosen)
        blocks = numbers.short(chosen[0]["blocks"])
        body.append([field, blocks, numbers.loss(residual), _nats(chosen)])
    return table(["field", "block parameters", "residual", "loss, nats per token"], body)


def _nats(found: Sequence[Mapping[str, Any]]) -> str:
    known = [each["nats"] for each in found]
    return numbers.ABSENT if None in known else numbers.loss(fmean(known))


def command(words: str) -> str:
    """A recorded command as a block of a page, in lines of a readable length."""
    lines, room = [""], 96
    for word in map(shlex.quote, shlex.split(words)):
        if len(lines[-1]) + len(word) > room:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return f"{NOT_RUN}\n```sh\n" + " \\\n".join(lines) + "\n```"


def value(report: Report, what: str, which: str, cost: str = "total") -> str:
    """One number for a sentence: `loss A`, `interval A`, `difference A:B`, its `interval A:B` (of
    A less B), `p A:B`, and `ratio A:B COST` of parameters (`total`, `blocks`) or of training
    `flops`."""
    labels = which.split(":")
    models = {model.label: model for model in report.models}
    for label in labels:
        if label not in models:
            raise unknown("model", label, models)
    found = models[labels[0]].metric(report.metric)
    if len(labels) == 1:
        ends = numbers.interval(found["t_interval"]) or numbers.ABSENT
        return {"loss": numbers.loss(found["mean"]), "interval": ends}[what]
    pair, sign = report.pair(labels[0], labels[1])
    if what == "ratio":
        top, bottom = (
            models[label].flops if cost == "flops" else models[label].params[cost]
            for label in labels
        )
        return numbers.three(top / bottom) if top and bottom else numbers.ABSENT
    difference, ends = pair["difference"]["estimate"], pair["difference"]["interval"]
    if ends is not None and ends["low"] is not None and sign < 0:
        ends = {"low": -ends["high"], "high": -ends["low"]}
    return {
        "interval": numbers.interval(ends) or numbers.ABSENT,
        "difference": numbers.loss(None if difference is None else abs(difference)),
        "p": numbers.p_value(pair["tests"]["t"]["p_holm"]),
    }[what]
