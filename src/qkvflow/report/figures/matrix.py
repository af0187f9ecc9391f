"""The matrix of tests: difference and corrected p below the diagonal, Hedges' g above."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from qkvflow.report import numbers
from qkvflow.report.content import Model, Report, seen_from
from qkvflow.report.figures.style import LINE, SOFT, notice, sheet
from qkvflow.report.palette import BETTER, EQUAL, WORSE, colour

TINTS = {"better": BETTER, "worse": WORSE, "equivalent": EQUAL}


def significance(report: Report) -> Figure:
    found = [
        (number, models)
        for number in range(len(report.groups))
        if len(models := [m for m in report.of(number) if m.seeds]) > 1
    ]
    if not found:
        return notice("Fewer than two models have results: there is no pair to test.")
    largest = max(len(models) for _, models in found)
    width, heights = 1.6 + 0.72 * largest, [1.2 + 0.42 * len(models) for _, models in found]
    figure, axes = sheet(
        max(5.0, width), sum(heights) + 0.6, len(found), gridspec_kw={"height_ratios": heights}
    )
    for row, (number, models) in zip(axes, found, strict=True):
        _panel(row[0], models, report)
        if len(found) > 1:
            row[0].set_title(report.groups[number].title, pad=12)
    family = report.tests["all_pairs"]
    figure.supxlabel(
        "below the diagonal: row minus column in nats per token, and p after Holm's correction over"
        f"\n{report.corrected_for}; above: Hedges' g; bold: p ≤ {family['alpha']:g}",
        fontsize=7,
        color=SOFT,
    )
    handles = [
        Patch(facecolor=BETTER, label="row is better"),
        Patch(facecolor=WORSE, label="row is worse"),
        Patch(facecolor=EQUAL, label=f"equivalent within {family['margin']:g} nats"),
        Patch(facecolor="white", edgecolor=LINE, label="no evidence"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, fontsize=7)
    return figure


def _panel(axes: Axes, models: list[Model], report: Report) -> None:
    for i, row in enumerate(models):
        for j, column in enumerate(models):
            if i == j:
                axes.add_patch(Rectangle((j, i), 1, 1, facecolor="#f3f4f6", edgecolor=LINE))
            else:
                _cell(axes, report, (row, column), (i, j))
    count = len(models)
    axes.set_xlim(0, count)
    axes.set_ylim(count, 0)
    labels = [model.label for model in models]
    axes.set_yticks([place + 0.5 for place in range(count)], labels)
    axes.set_xticks([place + 0.5 for place in range(count)], labels, rotation=35, ha="left")
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for texts in (axes.get_xticklabels(), axes.get_yticklabels()):
        for text, model in zip(texts, models, strict=True):
            text.set_color(colour(model.index))
            text.set_fontweight("bold")


def _cell(axes: Axes, report: Report, pair: tuple[Model, Model], place: tuple[int, int]) -> None:
    entry, sign = report.pair(pair[0].label, pair[1].label)
    i, j = place
    kind, real = seen_from(entry, sign), entry["verdict"]["better"] is not None
    axes.add_patch(
        Rectangle((j, i), 1, 1, facecolor=TINTS.get(kind, "white"), edgecolor=LINE, linewidth=0.6)
    )
    g = entry["hedges_g"]["estimate"]
    if kind == "not-testable":
        lines = [(numbers.ABSENT, 0.5, 7.5, False)]
    elif i > j:
        difference = numbers.signed(sign * entry["difference"]["estimate"])
        p = numbers.p_value(entry["tests"]["t"]["p_holm"])
        shown = f"p {p.replace('<', '< ')}"
        lines = [(difference, 0.36, 7.5, real), (shown, 0.72, 6.2, False)]
    else:
        shown = numbers.ABSENT if g is None else f"g {numbers.signed(sign * g, 1)}"
        lines = [(shown, 0.5, 7, real)]
    for text, height, size, bold in lines:
        axes.text(
            j + 0.5,
            i + height,
            text,
            ha="center",
            va="center",
            fontsize=size,
            fontweight="bold" if bold else "normal",
        )
