"""Descriptions of figures: plain data, from which both renderers draw."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Browser
from matplotlib.text import Annotation
from synthetic import MODELS

from qkvflow.report import ReportPaths
from qkvflow.report.charts.description import (
    Figure,
    Label,
    Plot,
    Rule,
    Series,
    page_data,
    to_json,
    values,
)
from qkvflow.report.charts.files import save
from qkvflow.report.charts.labels import FRAMES, above, beside
from qkvflow.report.charts.markup import figure_of
from qkvflow.report.charts.printed import draw
from qkvflow.report.charts.scales import axis, fit, share, ticks, width_of
from qkvflow.report.figures import FIGURES, of_group
from qkvflow.report.figures.sweep import quality_against_compute
from qkvflow.report.page.shell import document


def sweep_points() -> list[dict[str, Any]]:
    cost = {"euler": 1, "heun": 2}
    return [
        {
            "scheme": scheme,
            "num_steps": steps,
            "tolerance": None,
            "nats": 1.8 + 0.5 / steps,
            "standard_error": 0.01,
            "flops_per_token": 10**6 * steps * cost[scheme],
            "ms_per_token": 0.02 * steps * cost[scheme],
            "trained": (scheme, steps) == ("euler", 6),
        }
        for scheme in cost
        for steps in (1, 3, 6, 12)
    ]


def test_every_figure_is_plain_data(full: ReportPaths):
    figures = of_group(full.report, 0)
    assert set(figures) == set(FIGURES)
    for figure in [*figures.values(), quality_against_compute(sweep_points(), "standard")]:
        text = json.dumps(to_json(figure), allow_nan=False)
        assert json.loads(text)["title"] == figure.title


def test_descriptions_need_neither_matplotlib_nor_jax():
    code = (
        "import sys; sys.modules['matplotlib'] = sys.modules['jax'] = None\n"
        "import qkvflow.report.figures.sweep, qkvflow.report.figures\n"
        "import qkvflow.report.charts.files, qkvflow.report.charts.markup\n"
        "import qkvflow.report.analysis.sections"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("seen", "log", "texts"),
    [
        ([0, 1000], False, ["0", "200", "400", "600", "800", "1000"]),
        ([0, 1_024_000], False, ["0", "0.2M", "0.4M", "0.6M", "0.8M", "1.0M"]),
        ([-1.5, 1.5], False, ["−1.5", "−1.0", "−0.5", "0", "0.5", "1.0", "1.5"]),
        ([1.752, 1.905], False, ["1.80", "1.85", "1.90"]),
        ([0, 3e-5], False, ["0", "0.5e−5", "1.0e−5", "1.5e−5", "2.0e−5", "2.5e−5", "3.0e−5"]),
        ([1e6, 5e7], True, ["1M", "2M", "5M", "10M", "20M", "50M"]),
        ([240, 254], True, ["240", "245", "250"]),
        ([1e-8, 1e8], True, ["1e−5", "1", "100k"]),
    ],
)
def test_ticks_are_round_numbers(seen: list[float], log: bool, texts: list[str]):
    made = axis("x", seen, log=log, pad=0.0)
    found = ticks(made, made.views[0].low, made.views[0].high, 6)
    assert [text for _, text in found] == texts
    assert all(min(seen) <= value <= max(seen) * (1 + 1e-12) for value, _ in found)


def test_zoomed_axes_still_have_ticks():
    """Down to a five-hundredth of what is shown at first."""
    made = axis("loss", [1.7, 5.2])
    for part in (1, 10, 100, 500):
        low, high = 1.75, 1.75 + 3.5 / part
        assert 2 <= len(ticks(made, low, high, 6)) <= 7


@pytest.mark.parametrize("seen", [(1.507e12, 1.511e12), (4.231e6, 4.231e6), (9.9995, 10.0005)])
def test_ticks_of_values_that_nearly_agree_differ(seen: tuple[float, float]):
    made = axis("training FLOPs", seen, log=True, pad=0.2)
    for most in (3, 6, 12):
        names = [name for _, name in ticks(made, made.views[0].low, made.views[0].high, most)]
        assert len(set(names)) == len(names) >= 2


def test_ranges_hold_all_values_and_never_vanish():
    assert fit([1.0, None, float("nan"), 3.0], pad=0.1) == pytest.approx((0.8, 3.2))
    assert fit([1.0, 100.0], log=True, pad=0.5) == pytest.approx((0.1, 1000.0))
    assert fit([2.0, 4.0], zero=True, pad=0.25) == (0.0, 5.0)
    assert fit([1.0, 1.001], log=True, pad=0.0) == pytest.approx((0.98107, 1.02031), abs=1e-4)
    for seen in ([], [0.0], [5.0, 5.0], [1e12, 1e12]):
        low, high = fit(seen)
        assert low < high
    assert values([1.23456789, float("inf"), float("nan")]) == (1.23457, None, None)


def test_names_touch_neither_points_nor_each_other():
    """In the smallest frame and in the largest, for places at random."""
    generator = np.random.default_rng(3)
    for _ in range(20):
        spots = generator.random((8, 2))
        points = [(float(x), float(y), f"model-{i}") for i, (x, y) in enumerate(spots)]
        x, y = axis("", spots[:, 0], pad=0.2), axis("", spots[:, 1], pad=0.1)
        labels = beside(points, x, y)
        assert sum(label is not None for label in labels) >= 6
        for width, height in FRAMES:
            boxes = []
            for (px, py, text), label in zip(points, labels, strict=True):
                at, wide = (share(x, px) * width, share(y, py) * height), width_of(text)
                boxes.append((at[0] - 0.4, at[0] + 0.4, at[1] - 0.4, at[1] + 0.4))
                if label is not None:
                    before = {"start": 0.0, "middle": 0.5, "end": 1.0}[label.anchor] * wide
                    left, middle = at[0] + label.dx - before, at[1] + label.dy
                    boxes.append((left, left + wide, middle - 0.5, middle + 0.5))
            for a, b in itertools.combinations(boxes, 2):
                apart = a[1] <= b[0] or b[1] <= a[0] or a[3] <= b[2] or b[3] <= a[2]
                # Points may lie on each other; names may not lie on anything.
                assert apart or (a[1] - a[0] < 1 and b[1] - b[0] < 1)


def test_names_of_rules_have_levels_of_their_own():
    rules = [Rule(value, f"baseline {value}") for value in (1.0, 1.02, 1.04, 3.0, 9.0)]
    assert above(rules, 0.5, 4.0) == (0, 1, 2, 0, None)


def test_a_name_stands_in_print_where_the_description_puts_it():
    x, y = axis("x", [0, 1]), axis("y", [0, 1])
    label = Label("here", 0.75, -0.85, "start")
    series = Series("a", 0, (0.5,), (0.5,), look="points", labels=(label,))
    (axes,) = draw(Figure("f", "", "", (Plot("", x, y, (series,)),))).axes
    (text,) = [each for each in axes.texts if isinstance(each, Annotation)]
    assert text.get_text() == "here"
    assert text.xyann == pytest.approx((0.75 * 7.5, -0.85 * 7.5))
    assert [t.get_text() for t in axes.get_xticklabels()] == [
        "0",
        "0.2",
        "0.4",
        "0.6",
        "0.8",
        "1.0",
    ]


def test_one_description_becomes_two_files(tmp_path: Path):
    figure = quality_against_compute(sweep_points(), "standard")
    paths = save({"sweep": figure}, tmp_path / "new")
    assert paths is not None
    assert [path.name for path in paths] == ["sweep.png", "sweep.pdf"]
    sheet = draw(figure)
    assert [axes.get_xscale() for axes in sheet.axes] == ["log", "log"]
    named = {text.get_text() for axes in sheet.axes for text in axes.texts}
    assert named == {"1", "3", "6", "12"}
    assert {text.get_text() for text in sheet.legends[0].get_texts()} == {"euler", "heun"}


def test_every_figure_of_a_sweep_can_stand_on_a_page(chromium: Browser, tmp_path: Path):
    """What only print shows today is drawn by the page's renderer as well."""
    figure = quality_against_compute(sweep_points(), "<b>standard")
    page = tmp_path / "sweep.html"
    page.write_text(document("sweep", figure_of(figure), data=page_data([figure])), "utf-8")
    chromium.open(page)
    assert chromium.errors == []
    assert chromium.count(".whisker") == chromium.count(".point") == 2 * 8
    assert chromium.count(".ring") == 2
    assert chromium.count("figure b") == 0
    shown = chromium.value("[...document.querySelectorAll('svg .name')].map(n => n.textContent)")
    assert sorted(set(shown), key=int) == ["1", "3", "6", "12"]


def test_page_and_print_have_the_same_ticks(chromium: Browser, full: ReportPaths):
    """At the density that the page has room for."""
    chromium.open(full.html, width=1200)
    for name in ("loss-0", "curves-0", "depth-0"):
        shown = chromium.value(
            f"[...document.querySelectorAll('#figure-{name} .tick')].map(t => t.textContent)"
        )
        figure = next(f for f in of_group(full.report, 0).values() if f.name == name)
        panel: Any = figure.panels[0]
        axes = [panel.x] + ([panel.y] if isinstance(panel, Plot) else [])
        possible = {
            text
            for each in axes
            for most in range(1, 40)
            for _, text in ticks(each, each.views[0].low, each.views[0].high, most)
        }
        assert len(shown) >= 4
        assert set(shown) <= possible


def drag(page: Browser, selector: str, start: float, end: float) -> None:
    find = f"document.querySelector({json.dumps(selector)})"
    page.value(f"{find}.scrollIntoView({{block: 'center'}})")
    page.settle()
    x, y, width, height = page.value(
        f"[{find}.getBoundingClientRect()].flatMap(r => [r.x, r.y, r.width, r.height])"
    )
    middle = y + height / 2
    page.mouse("Pressed", x + start * width, middle, button="left", clickCount=1)
    page.mouse("Moved", x + end * width, middle, button="left", buttons=1)
    page.mouse("Released", x + end * width, middle, button="left", clickCount=1)
    page.settle()


@pytest.mark.parametrize("name", ["efficiency-0", "depth-0"])
def test_other_charts_zoom_too(chromium: Browser, full: ReportPaths, name: str):
    chromium.open(full.html)
    ticks_of = f"[...document.querySelectorAll('#figure-{name} .tick')].map(t => t.textContent)"
    before = chromium.value(ticks_of)
    drag(chromium, f"#figure-{name} svg", 0.2, 0.6)
    assert chromium.value(ticks_of) != before
    back = "new MouseEvent('dblclick', {bubbles: true})"
    chromium.value(f"document.querySelector('#figure-{name} svg').dispatchEvent({back})")
    chromium.settle()
    assert chromium.value(ticks_of) == before
    assert chromium.errors == []


def test_a_hidden_model_is_hidden_everywhere_and_axes_follow(chromium: Browser, full: ReportPaths):
    chromium.open(full.html)
    highest = (
        "Math.max(...[...document.querySelectorAll('#figure-efficiency-0 svg:first-of-type .tick "
        "text[text-anchor=end]')].map(t => Number(t.textContent)))"
    )
    before = chromium.value(highest)
    chromium.value("document.querySelector('.chip[data-model=standard-narrow]').click()")
    chromium.settle()
    assert chromium.count("svg [data-model=standard-narrow]") == 0
    assert chromium.count("svg [data-model=tong]") >= 6
    assert chromium.value(highest) < before
    assert chromium.errors == []


def test_names_on_the_page_do_not_lie_on_each_other(chromium: Browser, full: ReportPaths):
    for width in (390, 1200):
        chromium.open(full.html, width=width)
        over = chromium.value(
            "[...document.querySelectorAll('svg')].map(svg => {"
            " const all = [...svg.querySelectorAll('.name')].map(n => n.getBoundingClientRect());"
            " return all.filter((a, i) => all.some((b, j) => j < i && a.left < b.right - 1 &&"
            " b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4)).length;"
            "}).reduce((sum, n) => sum + n, 0)"
        )
        assert over == 0
        assert chromium.count("#figure-efficiency-0 .name") >= 3 * (len(MODELS) - 1)
