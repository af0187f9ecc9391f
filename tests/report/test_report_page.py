"""The page in a real browser: drawn, quiet, alone, and saying what the statistics say."""

import json
from pathlib import Path

import pytest
from browser import Browser
from synthetic import MODELS, experiment

from qkvflow.report import ReportPaths, build_report

SEEDS = 8 * 5 - 1
NASTY = '</script><script>window.hacked=1</script><img src="http://a.test/x" onerror=hacked=1>'


@pytest.fixture
def page(chromium: Browser, full: ReportPaths) -> Browser:
    chromium.open(full.html)
    return chromium


def quiet(browser: Browser, path: Path) -> None:
    assert browser.errors == []
    assert browser.requests == [path.resolve().as_uri()]


@pytest.mark.parametrize("width", [390, 768, 1400])
@pytest.mark.parametrize("dark", [False, True])
def test_every_figure_is_drawn(chromium: Browser, full: ReportPaths, width: int, dark: bool):
    chromium.open(full.html, width=width, dark=dark)
    quiet(chromium, full.html)
    assert chromium.count("#figure-loss-0 .dot") == SEEDS
    assert chromium.count("#figure-loss-0 .range") == 8
    assert chromium.count("#figure-loss-0 .mean") == 8
    assert chromium.count("#figure-efficiency-0 svg") == 3
    assert chromium.count("#figure-efficiency-0 .point") == 3 * 8
    assert chromium.count("#figure-efficiency-0 .whisker") == 3 * 8
    assert chromium.count("#figure-efficiency-0 .front") == 3
    assert chromium.count("#figure-curves-0 .curve") == 8
    assert chromium.count("#figure-curves-0 .band") == 8
    assert chromium.count("#figure-depth-0 .point") == 8 * 4
    assert chromium.count("#figure-depth-0 .ring") == 8
    assert chromium.count("#figure-speed-0 .dot") == 8 * 9
    assert chromium.count("#figure-speed-0 .point") == 8
    assert chromium.count("#figure-significance-0 .cell") == 8 * 7
    # No mark lies outside its figure, and nothing makes the page wider than the screen.
    outside = chromium.value(
        "[...document.querySelectorAll('svg .dot, svg .point, svg .mean')].filter(m => {"
        " const a = m.getBoundingClientRect(), b = m.closest('svg').getBoundingClientRect();"
        " return !(a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1"
        " && a.bottom <= b.bottom + 1); }).length"
    )
    assert outside == 0
    assert chromium.value("document.documentElement.scrollWidth") == width
    bad = "[...document.querySelectorAll('svg *')].filter(m => /NaN|undefined|Infinity/"
    assert chromium.value(bad + ".test(m.outerHTML)).length") == 0
    background = chromium.value("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")


def test_the_table_says_what_the_statistics_say(page: Browser, full: ReportPaths):
    summary = json.loads(full.statistics[0].read_text())
    cells = page.value(
        "Object.fromEntries([...document.querySelectorAll('#results tr[data-label]')].map(r =>"
        " [r.dataset.label, Object.fromEntries([...r.querySelectorAll('td[data-column]')].map(c =>"
        " [c.dataset.column, {...c.dataset, text: c.innerText}]))]))"
    )
    for label, model in summary["models"].items():
        nats, bits = (model["metrics"]["test"][unit] for unit in ("nats", "bits_per_byte"))
        loss = cells[label]["loss"]
        assert float(loss["value"]) == nats["mean"]
        assert float(loss["low"]) == nats["t_interval"]["low"]
        assert float(loss["high"]) == nats["t_interval"]["high"]
        ends = nats["t_interval"]
        assert loss["text"].split() == [
            f"{nats['mean']:.4f}",
            f"{ends['low']:.4f}",
            "–",
            f"{ends['high']:.4f}",
        ]
        assert float(cells[label]["bits"]["value"]) == bits["mean"]
        assert int(cells[label]["seeds"]["value"]) == len(model["seeds"])
        assert float(cells[label]["params"]["value"]) == MODELS[label].params
    assert {"unigram", "bigram", "trigram", "4-gram", "5-gram"} < set(cells)


def test_every_verdict_is_on_the_page_word_for_word(page: Browser, full: ReportPaths):
    tests = json.loads(full.statistics[1].read_text())
    families = [tests["all_pairs"], tests["named_pairs"]]
    expected = sorted(pair["verdict"]["sentence"] for f in families for pair in f["pairs"])
    shown = page.value("[...document.querySelectorAll('.sentence')].map(s => s.textContent)")
    assert sorted(shown) == expected
    asked = page.value("[...document.querySelectorAll('#answer h3')].map(h => h.textContent)")
    assert asked == list(dict.fromkeys(pair["name"] for pair in tests["named_pairs"]["pairs"]))


def test_failed_runs_and_protocol_are_there(page: Browser):
    text = page.value("document.body.innerText")
    assert "hybrid, seed 3: loss was not finite at step 412" in text
    for fact in ("adamw", "0.0003", "1,256,449", "0.10.0", "paired t-test", "qkvflow compare"):
        assert fact in text
    assert "Return the next line." in text
    assert "early text" not in text


def test_models_can_be_hidden_in_all_figures_at_once(page: Browser):
    page.value("document.querySelector('.chip[data-model=tong]').click()")
    assert page.count("#figure-loss-0 .mean") == 7
    assert page.count("#figure-curves-0 .curve") == 7
    assert page.count("#figure-efficiency-0 .point") == 3 * 7
    assert page.count("[aria-pressed=false][data-model=tong]") == 1
    page.value("document.getElementById('show-all').click()")
    assert page.count("#figure-loss-0 .mean") == 8
    page.value("document.getElementById('show-all').click()")
    assert page.count("#figure-loss-0 .mean") == 0
    assert page.errors == []


def test_controls_change_the_curves(page: Browser):
    def press(text: str) -> str:
        find = "[...document.querySelectorAll('#figure-curves-0 .controls button')]"
        page.value(f"{find}.find(b => b.textContent === {json.dumps(text)}).click()")
        return page.value("document.querySelector('#figure-curves-0 svg').outerHTML")

    seen = [press(text) for text in ("train", "tokens", "seconds", "last half", "last quarter")]
    assert len(set(seen)) == 5
    assert page.errors == []


def test_dragging_zooms_and_hovering_speaks(page: Browser):
    page.value("document.querySelector('#figure-curves-0 svg').scrollIntoView({block: 'center'})")
    page.settle()
    x, y, width, height = page.value(
        "[document.querySelector('#figure-curves-0 svg').getBoundingClientRect()]"
        ".flatMap(r => [r.x, r.y, r.width, r.height])"
    )
    ticks = "[...document.querySelectorAll('#figure-curves-0 .tick')].map(t => t.textContent)"
    before = page.value(ticks)
    middle = y + height / 2
    page.mouse("Moved", x + 0.4 * width, middle)
    page.settle()
    tip = page.value("document.getElementById('tip').innerText")
    assert all(label in tip for label in MODELS)
    page.mouse("Pressed", x + 0.3 * width, middle, button="left", clickCount=1)
    page.mouse("Moved", x + 0.5 * width, middle, button="left", buttons=1)
    page.mouse("Released", x + 0.5 * width, middle, button="left", clickCount=1)
    page.settle()
    assert page.value(ticks) != before
    assert page.errors == []


def test_a_cell_of_the_matrix_speaks(page: Browser, full: ReportPaths):
    page.value("document.querySelector('.matrix .cell').click()")
    said = page.value("document.querySelector('.chosen').textContent")
    first, second = (model.label for model in full.report.models[:2])
    assert said == full.report.pair(first, second)[0]["verdict"]["sentence"]


def test_nothing_refers_to_the_outside(page: Browser):
    loads = "[...document.querySelectorAll('[src], link, iframe, object, embed, [href^=http]')]"
    assert page.value(f"{loads}.length") == 0
    blocked = (
        "new Promise(done => { document.addEventListener('securitypolicyviolation',"
        " e => done(e.effectiveDirective)); const i = new Image(); i.src = 'http://a.test/x'; })"
    )
    answer = page.send("Runtime.evaluate", expression=blocked, awaitPromise=True)
    assert answer["result"]["value"] == "img-src"


def test_labels_and_samples_are_text(chromium: Browser, study: Path, no_figures: None):
    label = f"a {NASTY}"
    models = {label: MODELS["tong"], "standard": MODELS["standard"]}
    plan = {"question": NASTY, "questions": [{"name": NASTY, "a": label, "b": "standard"}]}
    experiment(study, models=models, sample=NASTY, plan=plan, failed=[(label, 1)], seeds=4)
    paths = build_report([study])
    chromium.open(paths.html)
    quiet(chromium, paths.html)
    assert chromium.value("typeof window.hacked") == "undefined"
    assert chromium.count("img") == 0
    assert chromium.value("document.querySelector('.sample pre').textContent") == NASTY
    assert chromium.value("document.querySelector('h1').textContent") == NASTY
    assert chromium.count(f"[data-label={json.dumps(label)}]") == 1
    assert chromium.count("#figure-loss-0 .dot") == 7


@pytest.mark.parametrize(
    "options",
    [
        {"speed": False, "baselines": False, "curves": False},
        {"seeds": 1},
        {"models": {"standard": MODELS["standard"]}},
        {"failed": [(label, seed) for label in MODELS for seed in range(5)]},
    ],
    ids=["bare", "one seed", "one model", "all failed"],
)
def test_pages_of_poor_experiments_are_quiet_too(
    chromium: Browser, study: Path, no_figures: None, options: dict
):
    paths = build_report([experiment(study, **options)])
    chromium.open(paths.html, width=390)
    quiet(chromium, paths.html)
    assert chromium.value("document.documentElement.scrollWidth") == 390


def test_two_data_sets_make_two_figures(chromium: Browser, tmp_path: Path, no_figures: None):
    few = {"standard": MODELS["standard"], "tong": MODELS["tong"]}
    one = experiment(tmp_path / "one", models=few)
    two = experiment(tmp_path / "two", models={"shared": MODELS["shared"]}, spec="wikitext")
    paths = build_report([one, two], tmp_path / "both")
    chromium.open(paths.html)
    quiet(chromium, paths.html)
    assert chromium.count("[data-figure^=loss] svg") == 2
    assert chromium.count("[data-figure^=loss] .dot") == 15
    assert chromium.count("#results tr.group") == 2
