"""The end of the page: text the models wrote, runs that failed, and how to repeat it all."""

from collections.abc import Mapping, Sequence
from typing import Any

from qkvflow.records import Record
from qkvflow.report import numbers
from qkvflow.report.charts.markup import swatch
from qkvflow.report.content import Report
from qkvflow.report.page.markup import Raw, join, table, tag
from qkvflow.report.probes import probes

SHAPE = ("d_model", "num_steps", "num_heads")
# Shown where models differ in them.
DETAIL = ("mlp_ratio", "d_state", "d_time", "d_ff", "context")


def sections(report: Report) -> Raw:
    parts = (_probes, _samples, _failed, _shapes, _rates, _protocol)
    return tag("div", [part(report) for part in parts])


def _probes(report: Report) -> Raw | None:
    parts = [
        (tag("h2", each.title), table(each.heads, each.rows), tag("p", each.note, class_="note"))
        for each in probes(report)
    ]
    return tag("section", parts, id="probes") if parts else None


def _samples(report: Report) -> Raw | None:
    parts = []
    for model in report.models:
        sample = model.sample
        if sample is not None:
            when = f"seed {sample.seed}" + (f", step {sample.step:,}" if sample.step else "")
            head = tag(
                "h3",
                swatch(model.index),
                model.label,
                " ",
                tag("small", when),
            )
            parts.append(tag("article", head, tag("pre", sample.text), class_="sample"))
    if not parts:
        return None
    return tag(
        "section",
        tag("h2", "What they write"),
        tag("p", "The last sample of the first seed: not chosen, not edited.", class_="note"),
        tag("div", parts, class_="samples"),
        id="samples",
    )


def _failed(report: Report) -> Raw | None:
    items = [
        tag("li", tag("b", f"{run.label}, seed {run.seed}"), f": {run.error or 'no reason given'}")
        for run in report.records.failed
    ]
    items += [
        tag("li", tag("b", f"{label}, seed {seed}"), ": not finished")
        for label, seed in report.records.unfinished
    ]
    if not items:
        return None
    return tag(
        "section",
        tag("h2", "Runs that are in no number"),
        tag("ul", items, class_="failed"),
        id="failed",
    )


def _shapes(report: Report) -> Raw | None:
    trained = [model for model in report.models if model.seeds]
    if not trained:
        return None
    keys = [key for key in SHAPE if any(key in model.config for model in trained)]
    keys += [key for key in DETAIL if len({str(m.config.get(key)) for m in trained}) > 1]
    heads = ["Model", "Field", "Block", "Scheme", *keys, "Parameters", "In blocks", "In effect"]
    kinds, parts = ("field", "block", "scheme"), ("total", "blocks", "in_effect")
    rows = [
        (
            model.label,
            *(model.kinds[kind] or numbers.ABSENT for kind in kinds),
            *(_plain(model.config.get(key)) for key in keys),
            *(_count(model.params[part]) for part in parts),
        )
        for model in trained
    ]
    match = report.plan.get("match")
    rule = (
        f"Widths were rescaled to match the reference in {_plain(match)}."
        if match
        else "Shapes are as configured; nothing was rescaled to match."
        if report.plan
        else None
    )
    note = (
        "In effect: block weights applied along the depth grid, what a model with weights of its"
        " own at every step would store."
    )
    return tag(
        "section",
        tag("h2", "Shapes"),
        tag("p", rule, class_="note") if rule else None,
        table(heads, rows, words=4),
        tag("p", note, class_="note"),
        id="shapes",
    )


def _rates(report: Report) -> Raw | None:
    tuned = [model for model in report.models if model.rates.tried]
    if not tuned:
        return None
    grid = sorted({rate for model in tuned for rate in model.rates.tried})
    rows = []
    for model in tuned:
        cells: list[Any] = [model.label]
        for rate in grid:
            loss = model.rates.tried.get(rate)
            text = "failed" if rate in model.rates.tried and loss is None else numbers.loss(loss)
            cells.append(tag("b", text) if rate == model.rates.used else text)
        rows.append(cells)
    note = (
        "Mean validation loss at every learning rate that was tried, over seeds that the comparison"
        " does not use. The bold ones are what the models were trained at."
    )
    return tag(
        "section",
        tag("h2", "Learning rates"),
        tag("p", note, class_="note"),
        table(["Model", *(f"{rate:g}" for rate in grid)], rows),
        id="rates",
    )


def _protocol(report: Report) -> Raw:
    runs = report.records.finished or report.records.failed
    parts: list[Raw | None] = [tag("h2", "How to repeat this")]
    parts.append(_facts(_rules(report)))
    for number, group in enumerate(report.groups):
        if group.data:
            title = f"Data: {group.title}" if len(report.groups) > 1 else "Data"
            parts += [tag("h3", title), _data(group.data)]
        here = [run for run in runs if run.label in report.groups[number].labels]
        sections = (("Training", "training"), ("Versions", "versions"), ("Hardware", "hardware"))
        for title, name in sections:
            if facts := _common(here, name):
                parts += [tag("h3", title), _facts(facts)]
    command = report.plan.get("command")
    if command:
        parts += [tag("h3", "Command"), tag("pre", _plain(command))]
    for name, text in report.plans.items():
        repeat = "qkvflow compare --config plan.yaml --out NEW"
        parts += [
            tag("h3", f"The plan of {name}"),
            tag("p", "Save it as plan.yaml and run ", tag("code", repeat), ".", class_="note"),
            tag("details", tag("summary", "plan.yaml"), tag("pre", text)),
        ]
    beside = "results.csv, results_table.tex, statistics_summary.json, significance_tests.json"
    parts.append(
        tag(
            "p",
            f"Beside this page: {beside}, and the figures as PNG and PDF in figures/."
            " The page is made from the records alone; ",
            tag("code", "qkvflow report DIR"),
            " makes it again.",
            class_="note",
        )
    )
    return tag("section", parts, id="protocol")


def _common(runs: Sequence[Record], section: str) -> dict[str, str]:
    """A section of all records; where they differ, each value with the models that have it."""
    owners: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        for key, value in _flat(run.section(section)).items():
            owners.setdefault(key, {}).setdefault(_plain(value), []).append(run.label)
    facts = {}
    for key, labels in owners.items():
        if sum(map(len, labels.values())) == len(runs) and len(labels) == 1:
            facts[key] = next(iter(labels))
        else:
            facts[key] = "; ".join(
                f"{v} ({', '.join(dict.fromkeys(m))})" for v, m in labels.items()
            )
    return facts


def _rules(report: Report) -> dict[str, str]:
    family = report.tests["all_pairs"]
    seeds = sorted({seed for model in report.models for seed in model.seeds})
    facts = {
        "Seeds": ", ".join(map(str, seeds)) or "none",
        "Selection": "checkpoints by validation loss; the test split is read once, at the"
        " selected checkpoint",
        "Tests": f"{family['primary_test']}; {report.corrected_for}, alpha {family['alpha']:g},"
        f" equivalence margin {family['margin']:g} nats per token",
    }
    budgets = dict.fromkeys(
        (budget["steps"], budget["tokens"])
        for model in report.models
        if (budget := model.summary["budget"])["steps"] is not None
    )
    if len(budgets) == 1:
        steps, tokens = next(iter(budgets))
        text = f"{steps:,.0f} steps"
        facts["Budget"] = text + (f", {tokens:,.0f} tokens each" if tokens else " each")
    elif budgets:
        facts["Budget"] = "; ".join(
            f"{m.label}: {m.summary['budget']['steps']:,.0f} steps"
            for m in report.models
            if m.summary["budget"]["steps"] is not None
        )
    started = [run.content.get("started") for run in report.records.finished]
    finished = [run.content.get("finished") for run in report.records.finished]
    if any(started) and any(finished):
        first, last = min(filter(None, started)), max(filter(None, finished))
        facts["Run"] = f"{first} to {last}"
    return facts


def _data(data: Mapping[str, Any]) -> Raw:
    facts = {key: value for key, value in data.items() if key != "splits" and value is not None}
    rows = [
        (
            name,
            *(_count(split.get(key)) for key in ("documents", "bytes", "tokens")),
            tag("code", split.get("sha256") or numbers.ABSENT, class_="hash"),
        )
        for name, split in (data.get("splits") or {}).items()
        if isinstance(split, Mapping)
    ]
    heads = ("Split", "Documents", "Bytes", "Tokens", "SHA-256")
    return join([_facts(_flat(facts)), table(heads, rows, last=3) if rows else None])


def _facts(facts: Mapping[str, Any]) -> Raw:
    return tag("dl", [(tag("dt", key), tag("dd", _plain(value))) for key, value in facts.items()])


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as `optim.lr`."""
    facts: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            facts |= _flat(value, f"{prefix}{key}.")
        else:
            facts[f"{prefix}{key}"] = value
    return facts


def _plain(value: Any) -> str:
    if value is None:
        return numbers.ABSENT
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _count(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) else numbers.ABSENT
