r"""`results_table.tex`: a table to \input; it needs \usepackage{booktabs} and nothing else."""

from qkvflow.report import numbers
from qkvflow.report.content import Report
from qkvflow.report.probes import Probe, probes
from qkvflow.report.table import Row, rows

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    numbers.ABSENT: "--",
    "−": "$-$",
    "\n": " ",
}
_HEAD = (
    "Model",
    "{split} loss",
    "bits/byte",
    "params",
    "FLOPs/token",
    "ms/step",
    "memory",
    "seeds",
)


def escape(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    return "".join(_SPECIAL.get(character, character) for character in text)


def to_latex(report: Report) -> str:
    """A complete `table` environment."""
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}[t]",
        r"\centering",
        r"\footnotesize",
        r"\setlength{\tabcolsep}{4pt}",
        r"\begin{tabular}{l" + "r" * (len(_HEAD) - 1) + "}",
        r"\toprule",
        _row([head.replace("{split}", report.metric.capitalize()) for head in _HEAD]),
    ]
    found = rows(report)
    for number, group in enumerate(report.groups):
        lines.append(r"\midrule")
        if len(report.groups) > 1:
            span = rf"\multicolumn{{{len(_HEAD)}}}{{l}}{{\emph{{{escape(group.title)}}}}}"
            lines.append(span + r" \\")
        here = [row for row in found if row.group == number]
        lines += [_row(_cells(row)) for row in here if row.kind == "model"]
        beneath = [row for row in here if row.kind != "model"]
        lines += [r"\midrule"] * bool(beneath) + [_row(_cells(row)) for row in beneath]
    return "\n".join(
        [
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            rf"\caption{{{_caption(report)}}}",
            r"\end{table}",
            *(_probe(each) for each in probes(report)),
            "",
        ]
    )


def _probe(probe: Probe) -> str:
    """Accuracy on the answers of a probe, as a table of its own."""
    *models, chance = [_row([escape(cell) for cell in row]) for row in probe.rows]
    return "\n".join(
        [
            "",
            r"\begin{table}[t]",
            r"\centering",
            r"\footnotesize",
            r"\begin{tabular}{l" + "r" * (len(probe.heads) - 1) + "}",
            r"\toprule",
            _row([escape(head) for head in probe.heads]),
            r"\midrule",
            *models,
            r"\midrule",
            chance,
            r"\bottomrule",
            r"\end{tabular}",
            rf"\caption{{{escape(probe.title)}. {escape(probe.note)}}}",
            r"\end{table}",
        ]
    )


def _row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _cells(row: Row) -> list[str]:
    mean = escape(numbers.loss(row.loss))
    if "loss" in row.best:
        mean = rf"\textbf{{{mean}}}"
    ends = row.interval or {}
    if row.loss is not None and ends.get("high") is not None:
        mean += rf" $\pm$ {numbers.loss(ends['high'] - row.loss)}"
    bits = escape(numbers.loss(row.bits))
    label = escape(row.label) + (r"$^{\dagger}$" if row.beside_trigram else "")
    cells = [label, mean, rf"\textbf{{{bits}}}" if "bits" in row.best else bits]
    model = row.model
    if model is None:
        return cells + [""] * (len(_HEAD) - len(cells))
    time = escape(numbers.milliseconds(model.speed.median if model.speed else None))
    return [
        *cells,
        escape(numbers.short(model.params["total"])),
        escape(numbers.short(model.flops_per_token)),
        rf"\textbf{{{time}}}" if "ms" in row.best else time,
        escape(numbers.memory(model.memory)).replace(" ", "~"),
        str(len(model.seeds)),
    ]


def _caption(report: Report) -> str:
    parts = [
        f"{report.metric.capitalize()} loss in nats per token, mean over seeds and half the width"
        " of its 95\\,\\% t interval. FLOPs are those of training, weight generation included."
        " Bold loss: better than every other model (t-tests, Holm-corrected)."
        " Bold time: lower than every other (sign tests of paired rounds).",
    ]
    if any(row.beside_trigram for row in rows(report)):
        parts.append(r"$^{\dagger}$Not shown to beat a trigram: broken or under-trained.")
    return " ".join(parts)
