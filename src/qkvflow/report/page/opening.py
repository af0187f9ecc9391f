"""The top of the page: the question, the answer, the one table and the warnings."""

from collections.abc import Mapping
from typing import Any

from qkvflow.report import numbers
from qkvflow.report.charts.markup import swatch
from qkvflow.report.content import Report
from qkvflow.report.findings import cautions, headlines, leading_verdicts
from qkvflow.report.page.markup import Raw, tag
from qkvflow.report.table import Row, rows


def question(report: Report) -> str:
    """The plan's own words, or what the experiment asks by its shape."""
    own = report.plan.get("question") or report.plan.get("title")
    if own:
        return str(own)
    trained = [model for model in report.models if model.seeds]
    where = " and ".join(dict.fromkeys(str(g.data.get("spec", "?")) for g in report.groups))
    steps = {model.summary["budget"]["steps"] for model in trained}
    budget = f" after {steps.pop():,.0f} steps" if len(steps) == 1 and None not in steps else ""
    if len(trained) < 2:
        return (
            f"What {report.metric} loss does {trained[0].label if trained else 'it'} reach{budget}?"
        )
    return f"Which of {len(trained)} models has the lowest {report.metric} loss on {where}{budget}?"


def header(report: Report) -> Raw:
    seeds = sorted({len(model.seeds) for model in report.models})
    spread = f"{seeds[0]}" if seeds[0] == seeds[-1] else f"{seeds[0]} to {seeds[-1]}"
    failed = len(report.records.failed)
    facts = [
        f"{len(report.models)} {'model' if len(report.models) == 1 else 'models'}",
        f"{spread} {'seed' if seeds[-1] == 1 else 'seeds'} each",
        f"{failed} failed {'run' if failed == 1 else 'runs'}" if failed else None,
        *(group.title for group in report.groups),
    ]
    return tag(
        "header",
        tag("p", "qkvflow report", class_="kicker"),
        tag("h1", question(report)),
        tag("p", " · ".join(fact for fact in facts if fact), class_="facts"),
    )


def sections(report: Report) -> Raw:
    return tag("div", _answer(report), _table_section(report), _warnings(report))


def _answer(report: Report) -> Raw:
    parts = [tag("p", line, class_="headline") for line in headlines(report)]
    for asked in report.questions:
        parts.append(tag("h3", asked.name))
        parts.append(tag("ul", [_verdict(pair) for pair in asked.pairs], class_="verdicts"))
    # A plan with questions of its own leads with them; the other pairs are folded away.
    lead = [] if report.questions else leading_verdicts(report)
    if lead:
        parts.append(tag("ul", [_verdict(pair, False) for pair in lead], class_="verdicts"))
    rest = [pair for pair in report.pairs if pair not in lead]
    if rest:
        some = "pair of models" if len(rest) == 1 else "pairs of models"
        count = f"{len(rest)} {some if report.questions else 'further ' + some}"
        listed = tag("ul", [_verdict(pair, False) for pair in rest], class_="verdicts")
        parts.append(tag("details", tag("summary", count), listed))
    return tag("section", parts, id="answer")


def _verdict(pair: Mapping[str, Any], effect: bool = True) -> Raw:
    verdict = pair["verdict"]
    lines: list[Any] = [tag("span", verdict["sentence"], class_="sentence")]
    if effect and pair["hedges_g"]["estimate"] is not None:
        g, wins = pair["hedges_g"], pair["probability_of_improvement"]
        ends = g["interval"]
        between = ""
        if ends["low"] is not None:
            between = f" ({numbers.signed(ends['low'], 1)} to {numbers.signed(ends['high'], 1)})"
        text = (
            f"Hedges' g {numbers.signed(g['estimate'], 2)}{between};"
            f" {pair['a']} lower on {100 * wins['estimate']:.0f} % of seeds"
        )
        lines.append(tag("span", text, class_="effect"))
    lines += [tag("span", caveat, class_="caveat") for caveat in verdict["caveats"]]
    return tag(
        "li", lines, class_=f"verdict {verdict['kind']}", data_pair=f"{pair['a']}|{pair['b']}"
    )


def _table_section(report: Report) -> Raw:
    head = tag(
        "tr",
        tag("th", "Model", scope="col"),
        _heading(f"{report.metric.capitalize()} loss", "nats per token, 95 % interval"),
        _heading("Bits per byte"),
        _heading("Parameters", "stored"),
        _heading("FLOPs", "per token, training"),
        _heading("Step", "ms, median"),
        _heading(
            "Memory", {"program": "of a step", "resident": "peak resident"}[report.memory_kind]
        ),
        _heading("Seeds"),
    )
    body = []
    found = rows(report)
    for number, group in enumerate(report.groups):
        if len(report.groups) > 1:
            body.append(
                tag("tr", tag("th", group.title, colspan=8, scope="rowgroup"), class_="group")
            )
        body += [_row(row) for row in found if row.group == number]
    table = tag("table", tag("thead", head), tag("tbody", body), id="results")
    return tag(
        "section",
        tag("h2", "Results"),
        tag("div", table, class_="scroll", tabindex=0, role="region", aria_label="Results table"),
        tag("p", _table_note(report, found), class_="note"),
        id="table",
    )


def _heading(text: str, unit: str | None = None) -> Raw:
    return tag("th", text, tag("small", unit) if unit else None, scope="col", class_="number")


def _row(row: Row) -> Raw:
    model = row.model
    ends = numbers.interval(row.interval)
    failed = len(model.summary["failed"]) if model else 0
    flag = {"worse": "no better than a trigram", "unclear": "not shown to beat a trigram"}
    mark = name = None
    if model is not None:
        mark = swatch(model.index)
        if model.name and model.name != model.label:
            name = tag("small", model.name)
    cells = [
        tag(
            "th",
            mark,
            row.label,
            name,
            tag("small", flag[row.beside_trigram], class_="flag") if row.beside_trigram else None,
            scope="row",
        ),
        _cell(
            row.loss,
            numbers.loss(row.loss),
            "loss" in row.best,
            ends.replace(" to ", " – ") if ends else None,
            column="loss",
            low=(row.interval or {}).get("low"),
            high=(row.interval or {}).get("high"),
        ),
        _cell(row.bits, numbers.loss(row.bits), "bits" in row.best, column="bits"),
    ]
    if model is None:
        cells.append(tag("td", "", colspan=5))
    else:
        speed = model.speed
        median = speed.median if speed else None
        quartiles = None
        if speed is not None and speed.q1 < speed.q3:
            quartiles = f"{numbers.milliseconds(speed.q1)} – {numbers.milliseconds(speed.q3)}"
        total, each = model.params["total"], model.flops_per_token
        cells += [
            _cell(total, numbers.short(total), column="params"),
            _cell(each, numbers.short(each), column="flops"),
            _cell(median, numbers.milliseconds(median), "ms" in row.best, quartiles, column="ms"),
            _cell(model.memory, numbers.memory(model.memory), column="memory"),
            _cell(
                len(model.seeds),
                str(len(model.seeds)),
                below=f"{failed} failed" if failed else None,
                column="seeds",
            ),
        ]
    return tag("tr", cells, class_=row.kind, data_label=row.label)


def _cell(
    value: float | int | None,
    text: str,
    best: bool = False,
    below: str | None = None,
    *,
    column: str,
    low: float | None = None,
    high: float | None = None,
) -> Raw:
    return tag(
        "td",
        tag("b", text, title="best") if best else text,
        tag("small", below) if below else None,
        class_="number best" if best else "number",
        data_column=column,
        data_value=None if value is None else repr(value),
        data_low=None if low is None else repr(low),
        data_high=None if high is None else repr(high),
    )


def _table_note(report: Report, found: list[Row]) -> str:
    parts = ["Losses are means over seeds; intervals are 95 % t intervals of the mean."]
    if any("loss" in row.best for row in found):
        parts.append("A marked loss is better than every other one after Holm's correction.")
    else:
        parts.append("No loss is marked: none is shown to be better than every other one.")
    if any("ms" in row.best for row in found):
        parts.append(
            "A marked time is lower than every other one (sign test of paired rounds against each)."
        )
    if any(model.speed and not model.speed.measured for model in report.models):
        parts.append("Times are those of training, not measured on their own.")
    parts.append("FLOPs include the generation of weights.")
    if any(row.kind == "ngram" for row in found):
        parts.append(
            "N-grams are counted on the train split and scored on the same text, each with "
            "the smoothing that is better on validation."
        )
    return " ".join(parts)


def _warnings(report: Report) -> Raw | None:
    found = cautions(report)
    if not found:
        return None
    items = [tag("li", c.text, class_="serious" if c.serious else "limit") for c in found]
    return tag(
        "section",
        tag("h2", "Read this with care"),
        tag("ul", items, class_="cautions"),
        id="cautions",
    )
