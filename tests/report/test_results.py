"""Pages say what the records in results/ say, and are caught where they do not."""

import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from synthetic import MODELS, PLAN, QUESTIONS, experiment, record

from qkvflow.digests import sealed
from qkvflow.errors import UserError
from qkvflow.files import write_json
from qkvflow.records import collect as read_records
from qkvflow.records import curve, read_record, write_record
from qkvflow.report import build_report, markdown
from qkvflow.statistics.scaling_law import Fit, fitted
from results.collect import collect
from results.pages import Pages

ROOT = Path(__file__).parents[2]
DATA = {"spec": "stdlib", "tokenizer": "bytes", "splits": {}}
README = "# A project\n4.94M parameters.\n\n## Results\n{verdicts}\n"
PAGE = """# Results
Of `study`, at a rate of 0.0003 (arXiv 2510.25741, `0.123`).

{losses}

{verdicts} {curve} {depths} {command}

The best has {value}, and {ratio} of the parameters.

![](figures/study_statistical_performance.png)
"""
WORDS = {
    "losses": "study losses",
    "verdicts": "study verdicts",
    "curve": "study curve 4",
    "depths": "study depths",
    "command": "study command",
    "value": "study value loss tong",
    "ratio": "study value ratio tong:standard blocks",
}


def begun(name: str) -> str:
    return f"<!-- results: {WORDS[name]} -->\n<!-- end -->"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of two pages and one study, rebuilt."""
    root = tmp_path_factory.mktemp("repository")
    command = "qkvflow compare --preset quick --workers 1 --config /a/b/quick.yaml --out /c/d"
    named = {**QUESTIONS[-1], "name": "The hybrid, against gated"}
    plan = {**PLAN, "questions": [*QUESTIONS[:-1], named], "command": command}
    models = {label: MODELS[label] for label in MODELS if label != "standard-narrow"}
    source = experiment(root / "run", models=models, seeds=3, evaluations=True, plan=plan)
    (root / "results").mkdir()
    collect(source, "study", root / "results")
    (root / "docs").mkdir()
    (root / "README.md").write_text(README.format(verdicts=begun("verdicts")))
    (root / "docs" / "results.md").write_text(PAGE.format(**{k: begun(k) for k in WORDS}))
    Pages(root).rebuild()
    return root


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def test_the_pages_of_this_repository_say_what_its_records_say():
    assert Pages(ROOT).check() == []


def test_a_page_that_was_rebuilt_is_right_and_stays(made: Path):
    assert Pages(made).check() == []
    assert Pages(made).rebuild() == []
    text = (made / "docs" / "results.md").read_text()
    tong = read_records(made / "results" / "study").of("tong")
    mean = np.mean([run.content["losses"]["test"]["nats"] for run in tong])
    assert f"| tong | {mean:.4f} |" in text
    assert f"The best has <!-- results: study value loss tong -->{mean:.4f}<!-- end -->," in text
    assert "--config results/study/plan.yaml --out runs/study\n```" in text.replace(" \\\n   ", "")
    # Every question of the plan has its answer, with interval and p.
    answers = [line for line in text.splitlines() if line.startswith("- Is it time-indexing")]
    assert len(answers) == 2
    assert all("interval" in line and "after Holm over 3 pairs" in line for line in answers)
    assert re.search("^- The hybrid, against gated: (No evidence|hybrid)", text, re.MULTILINE)
    assert "N-grams counted on all 1.26M tokens of the train split, orders 1 to 5: 3.2010" in text


def test_the_interval_of_a_difference_has_its_direction(copy: Path):
    page = copy / "docs" / "results.md"
    words = [f"study value interval {pair}" for pair in ("tong:standard", "standard:tong")]
    page.write_text("# R\n" + "\n".join(f"<!-- results: {w} --><!-- end -->" for w in words))
    Pages(copy).rebuild()
    records = read_records(copy / "results" / "study")
    tong, standard = (
        np.array([run.content["losses"]["test"]["nats"] for run in records.of(label)])
        for label in ("tong", "standard")
    )
    low, high = scipy.stats.ttest_rel(tong, standard).confidence_interval()
    lines = page.read_text().splitlines()[1:]
    assert f">{low:.4f} to {high:.4f}<" in lines[0]
    assert f">{-high:.4f} to {-low:.4f}<" in lines[1]


def test_studies_side_by_side(copy: Path):
    """What a study has not is left out; in bold, what its own correction leaves significant."""
    shutil.rmtree(copy / "results" / "study" / "runs" / "hybrid")
    models = {label: MODELS[label] for label in MODELS if label != "standard-narrow"}
    plan = {**PLAN, "questions": QUESTIONS, "command": "qkvflow compare"}
    source = experiment(copy / "six", models=models, seeds=6, plan=plan)
    records = read_records(collect(source, "larger", copy / "results"))
    losses = {
        label: np.array([run.content["losses"]["test"]["nats"] for run in records.of(label)])
        for label in records.labels
    }
    asked = [(each["a"], each["b"]) for each in QUESTIONS]
    every = list(itertools.combinations(losses, 2))
    shown = [("tong", "standard"), ("standard", "tong"), *asked]
    page = copy / "docs" / "results.md"
    words = " ".join(f"{a}:{b}" for a, b in shown)
    page.write_text(f"# R\n<!-- results: larger,study differences {words} --><!-- end -->\n")
    Pages(copy).rebuild()
    assert Pages(copy).check() == []
    head, _, *lines = [line for line in page.read_text().splitlines() if line.startswith("|")]
    assert head == "| difference | larger | study |"
    for (a, b), line in zip(shown, lines, strict=True):
        first, *second = line.split(" | ")[1:]
        test = scipy.stats.ttest_rel(losses[a], losses[b])
        low, high = test.confidence_interval()
        mean = (losses[a] - losses[b]).mean()
        assert f"{mean:+.4f} ({low:.4f} to {high:.4f})" in first
        family = asked if (a, b) in asked else every
        found = sorted(scipy.stats.ttest_rel(losses[c], losses[d]).pvalue for c, d in family)
        place = int(np.argmin(np.abs(np.array(found) - test.pvalue)))
        holm = max(p * (len(found) - i) for i, p in enumerate(found[: place + 1]))
        assert ("**" in first) == (holm < 0.05)
        assert (second == ["– |"]) == ("hybrid" in (a, b))
    assert {"**" in line.split(" | ")[1] for line in lines} == {True, False}


def test_pairs_chosen_afterwards_are_corrected_for_each_other(copy: Path):
    page = copy / "docs" / "results.md"
    pairs = ("tong:standard", "hybrid:standard")
    words = f"study verdicts post-hoc {' '.join(pairs)}"
    page.write_text(f"# R\n<!-- results: {words} --><!-- end -->\n")
    Pages(copy).rebuild()
    records = read_records(copy / "results" / "study")
    losses = {
        label: [run.content["losses"]["test"]["nats"] for run in records.of(label)]
        for label in ("tong", "hybrid", "standard")
    }
    found = [
        scipy.stats.ttest_rel(losses[a], losses[b]).pvalue
        for a, b in (pair.split(":") for pair in pairs)
    ]
    smaller, larger = 2 * min(found), max(2 * min(found), max(found))
    lines = [line for line in page.read_text().splitlines() if line.startswith("- ")]
    for p, line in zip(found, lines, strict=True):
        holm = min(1.0, smaller if p == min(found) else larger)
        said = f"p = {holm:.3f}" if holm >= 0.001 else "p < 0.001"
        assert f"{said} after Holm over 2 pairs" in line


def altered(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")


def in_a_block(root: Path) -> None:
    altered(root / "docs" / "results.md", "| tong | 1.7", "| tong | 1.6")


def in_a_sentence(root: Path) -> None:
    altered(root / "docs" / "results.md", "rate of 0.0003", "rate of 0.0004")


def in_the_readme(root: Path) -> None:
    altered(root / "README.md", "## Results\n", "## Results\nBetter by 0.1234 nats.\n")


def in_a_value(root: Path) -> None:
    altered(root / "docs" / "results.md", "value loss tong -->1.", "value loss tong -->2.")


def in_a_sealed_record(root: Path) -> None:
    """Somebody who seals the record again is found by what the page says."""
    path = root / "results" / "study" / "runs" / "tong" / "seed-0" / "record.json"
    content = json.loads(path.read_text())
    content["losses"]["test"]["nats"] += 0.01
    write_record(path, content)


def in_a_figure(root: Path) -> None:
    (root / "docs" / "figures" / "study_statistical_performance.png").write_bytes(b"\x89PNG")


@pytest.mark.parametrize(
    "alter",
    [in_a_block, in_a_sentence, in_the_readme, in_a_value, in_a_sealed_record, in_a_figure],
)
def test_what_is_altered_is_found(copy: Path, alter: Callable[[Path], None]):
    alter(copy)
    assert Pages(copy).check() != []


def test_altered_files_of_records_are_refused(copy: Path):
    run = copy / "results" / "study" / "runs" / "tong" / "seed-0"
    before = (run / "metrics.jsonl").read_text()
    altered(run / "metrics.jsonl", '"loss":', '"loss":9')
    with pytest.raises(UserError, match="altered"):
        Pages(copy).check()
    (run / "metrics.jsonl").write_text(before)
    altered(run / "record.json", '"nats":1', '"nats":2')
    with pytest.raises(UserError, match="altered"):
        Pages(copy).check()


def test_what_has_no_records_is_not_checked(copy: Path):
    page = copy / "docs" / "results.md"
    text = page.read_text()
    page.write_text(f"{text}\n<!-- no records -->\n\nOnce it was 9.876.\n")
    assert Pages(copy).check() == []
    page.write_text(f"{text}\nOnce it was 9.876.\n")
    [line] = Pages(copy).check()
    assert "9.876" in line


def test_blocks_that_cannot_be_made_are_refused(copy: Path):
    page, pages = copy / "docs" / "results.md", Pages(copy)
    for words, why in (
        ("study loses", "did you mean losses"),
        ("studie losses", "did you mean study"),
        ("study verdicts tong:nobody", "nobody"),
        ("study differences", "name one"),
        ("study differences tong:nobody", "no pair tong:nobody"),
        ("study value loss", "study value loss"),
        ("study probes", "no run answers a probe"),
        ("study scaling", "scaling.json"),
    ):
        page.write_text(f"# R\n<!-- results: {words} --><!-- end -->\n")
        with pytest.raises(UserError, match=why):
            pages.rebuild()
    page.write_text("# R\n<!-- results: study losses -->\n")
    with pytest.raises(UserError, match="does not end"):
        pages.rebuild()


def test_what_is_collected_is_small_and_reports_the_same(
    made: Path, tmp_path: Path, no_figures: None
):
    kept = made / "results" / "study"
    runs = list(kept.rglob("record.json"))
    assert sum(path.stat().st_size for path in kept.rglob("*") if path.is_file()) < 7500 * len(runs)
    paths = [build_report([d], tmp_path / d.name) for d in (made / "run", kept)]
    first, second = (each.csv.read_text() for each in paths)
    assert first == second
    assert not paths[1].report.records.notes
    old, new = (each / "runs" / "tong" / "seed-1" for each in (made / "run", kept))
    assert [line["loss"] for line in curve(new).validation] == [
        line["loss"] for line in curve(old).validation
    ]
    means = [np.mean([line["loss"] for line in curve(each).train]) for each in (old, new)]
    assert 10 < len(curve(new).train) <= 30
    assert means[0] == pytest.approx(means[1], rel=1e-5)
    assert (
        read_record(new / "record.json").content["collected"]
        == (read_record(old / "record.json").content["sha256"])
    )
    again = collect(kept, "again", tmp_path) / new.relative_to(kept)
    for path in new.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes()


def test_studies_that_are_not_whole_are_not_collected(made: Path, tmp_path: Path):
    source = Path(shutil.copytree(made / "run", tmp_path / "run"))
    with pytest.raises(UserError, match="a name"):
        collect(source, "A name", tmp_path)
    with pytest.raises(UserError, match="holds no records"):
        collect(tmp_path / "nothing", "nothing", tmp_path)
    (source / "runs" / "tong" / "seed-1" / "record.json").unlink()
    with pytest.raises(UserError, match="does not exist"):
        collect(source, "study", tmp_path)
    assert not list(tmp_path.glob("*study"))


def test_a_study_of_conversion_becomes_a_comparison(tmp_path: Path):
    made = MODELS["standard"]
    found = {"source": {"path": "/x", "blocks": 300, "nats": 2.0}, "field": "cycle", "base": ""}
    for seed in range(3):
        for place in ("original", "cycle/text", "cycle/taught"):
            run = tmp_path / "run" / f"seed-{seed}" / place
            run.mkdir(parents=True)
            content = record("standard", seed, made, DATA, [0.01 * seed, 0.02 * seed, 0.0])
            write_record(run / "record.json", content)
        sizes = [{"chosen": True, "blocks": 100, "nats": 3.0 + seed, "residuals": {"all": 0.25}}]
        start = tmp_path / "run" / f"seed-{seed}" / "cycle" / "start"
        write_json(start / "conversion.json", {**found, "sizes": sizes})
    out = collect(tmp_path / "run", "conversion", tmp_path / "results")
    assert read_records(out).labels == ("cycle-taught", "cycle-text", "original")
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "conversion.md"
    page.write_text("# C\n<!-- results: conversion conversion --><!-- end -->\n")
    (tmp_path / "README.md").write_text("# R\n")
    Pages(tmp_path).rebuild()
    assert "| cycle | 100 | 0.2500 | 4.0000 |" in page.read_text()
    assert "/x" not in (out / "conversions" / "cycle" / "seed-0.json").read_text()


def test_laws_are_fitted_to_the_losses_of_the_records(tmp_path: Path):
    law = Fit({"A": 60.0, "B": 120.0, "E": 1.3, "alpha": 0.35, "beta": 0.4, "phi": 0.5}, {}, (), ())
    points = []
    for width in (32, 64, 128):
        for depth in (1, 2, 4):
            for tokens in (300_000, 1_000_000, 3_000_000):
                content = record("shared", 0, MODELS["shared"], DATA, [0.0, 0.0, 0.0])
                loss = float(law.loss(width, 12 * width**2, depth, tokens))
                content["losses"]["test"]["nats"] = loss
                content["model"]["config"] |= {"d_model": width, "num_steps": depth}
                content["budget"]["tokens"] = tokens
                run = tmp_path / "run" / "runs" / "shared" / f"{width}-{depth}-{tokens}" / "seed-0"
                run.mkdir(parents=True)
                write_record(run / "record.json", content)
                sizes = {"once": width, "shared": 12 * width**2, "flops": width**2 * tokens}
                place = {"label": "shared", "width": width, "repeats": depth, "tokens": tokens}
                points.append({**place, **sizes, "seed": 0, "loss": loss})
                points.append({**points[-1], "label": "standard"})
                content["label"] = "standard"
                run = Path(str(run).replace("shared", "standard"))
                run.mkdir(parents=True)
                write_record(run / "record.json", content)
    write_json(tmp_path / "run" / "scaling.json", fitted(points, "standard"))
    out = collect(tmp_path / "run", "law", tmp_path / "results")
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "scaling-laws.md"
    blocks = [
        f"<!-- results: law {kind} --><!-- end -->\n" for kind in ("scaling", "needs", "grid")
    ]
    page.write_text(f"# L\n{''.join(blocks)}![](figures/law_tokens.png)\n")
    (tmp_path / "README.md").write_text("# R\n")
    Pages(tmp_path).rebuild()
    assert "| shared | 0.500 (0.500 to 0.500) | 0.350 (" in page.read_text()
    assert page.read_text().count("| 0.0 % | 27 |") == 2, "what a law leaves over of its own losses"
    losses = [float(law.loss(64, 12 * 64**2, depth, 3_000_000)) for depth in (1, 2, 4)]
    assert f"| shared, 64 wide | {' | '.join(f'{x:.4f}' for x in losses)} |" in page.read_text()
    # phi is a half: at one repeat twice the parameters are needed that do at four.
    loss = float(law.loss(128, 12 * 128**2, 4, 3_000_000))
    assert f"| shared | 1 | {loss:.4f} | 197k | 393k |" in page.read_text()
    assert (tmp_path / "docs" / "figures" / "law_tokens.png").exists()
    path = next(out.rglob("record.json"))
    content = json.loads(path.read_text())
    content["losses"]["test"]["nats"] += 0.001
    write_json(path, sealed(content))
    with pytest.raises(UserError, match="disagree"):
        Pages(tmp_path).check()


def test_trials_of_searches_are_shown_together(tmp_path: Path):
    def content(rates: dict[float, float | None]) -> dict[str, Any]:
        trials = [
            {"number": i, "values": {"optim.name": "muon", "optim.lr": rate}, "loss": loss}
            for i, (rate, loss) in enumerate(rates.items())
        ]
        search = {"optim.name": "muon", "optim.lr": "1e-3,1e-2"}
        return sealed({"search": search, "models": {"tong": {"trials": trials, "best": 0}}})

    searches = {"one": {0.001: 1.5, 0.01: None}, "two": {0.0003: 1.4, 0.0001: 1.6}}
    for name, rates in searches.items():
        write_json(tmp_path / name / "tuning.json", content(rates))
        collect(tmp_path / name, name, tmp_path / "results")
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "tuning.md"
    page.write_text("# T\n<!-- results: one+two tuning --><!-- end -->\n")
    (tmp_path / "README.md").write_text("# R\n")
    Pages(tmp_path).rebuild()
    assert "| muon 0.0001 | muon 0.0003 | muon 0.001 | muon 0.01 |" in page.read_text()
    assert "| tong | 1.6000 | **1.4000** | 1.5000 | – |" in page.read_text()
    many = content({0.001 * i: 2.0 - 0.01 * i for i in range(1, 20)})
    assert "| tong | muon | 0.019 | 1.8100 |" in markdown.tuning([many])
    altered(tmp_path / "results" / "two" / "tuning.json", '"loss":1.4', '"loss":1.3')
    with pytest.raises(UserError, match="altered"):
        Pages(tmp_path).check()


def test_answers_to_probes_are_shown_by_level(tmp_path: Path):
    for seed in range(3):
        run = tmp_path / "results" / "hops" / "runs" / "tong" / f"seed-{seed}"
        run.mkdir(parents=True)
        content = record("tong", seed, MODELS["tong"], DATA, [0.0, 0.01 * seed, 0.0])
        levels = [
            {"level": 1, "trained": True, "tokens": 0.5 + 0.1 * seed, "chance": 0.1},
            {"level": 8, "trained": False, "tokens": 0.25, "chance": 0.1},
        ]
        facts = {"split": "test", "difficulty": "hops", "floor": 1.0, "tokens": 0.4, "chance": 0.1}
        write_record(run / "record.json", {**content, "accuracy": {**facts, "levels": levels}})
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "looped.md"
    page.write_text("# T\n<!-- results: hops probes --><!-- end -->\n")
    (tmp_path / "README.md").write_text("# R\n")
    Pages(tmp_path).rebuild()
    assert "| Model | All | hops 1 | hops 8\\* |" in page.read_text()
    assert "| tong | 40.0 % | 60.0 % (35.2 % to 84.8 %) | 25.0 % |" in page.read_text()
