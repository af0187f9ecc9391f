"""The report as files: what stands in them, and what happens when something is missing."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from rich.console import Console
from synthetic import EVERY, MODELS, NGRAMS, PLAN, STEPS, Made, experiment

from qkvflow.cli import main
from qkvflow.digests import sealed
from qkvflow.errors import UserError
from qkvflow.files import write_json
from qkvflow.records import write_record
from qkvflow.report import ReportPaths, build_report, print_summary
from qkvflow.report.charts.printed import STYLE, draw
from qkvflow.report.figures import FIGURES
from qkvflow.report.figures import printed as printed_figures
from qkvflow.report.findings import best, cautions, headlines, unbeaten

FEW = {name: MODELS[name] for name in ("standard", "tong", "shared")}


def read_rows(paths: ReportPaths) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(paths.csv.read_text())))


def texts(paths: ReportPaths) -> str:
    return "\n".join(caution.text for caution in cautions(paths.report))


def printed(paths: ReportPaths) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_summary(paths, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def draw_all(paths: ReportPaths) -> None:
    """Lay out every figure, which is where drawing fails if it does."""
    with mpl.rc_context():
        mpl.rcParams.update(STYLE)
        for figure in printed_figures(paths.report).values():
            draw(figure).draw_without_rendering()


def test_questions_stand_before_their_answers(full: ReportPaths):
    asked = [pair for question in full.report.questions for pair in question.pairs]
    assert asked
    said = printed(full)
    for pair in asked:
        assert pair["name"].endswith("?")
        assert f"• {pair['name']} {pair['a']}" in said or f"• {pair['name']} No evidence" in said


def test_every_file_is_written(full: ReportPaths):
    directory = full.html.parent
    names = {path.relative_to(directory).as_posix() for path in directory.rglob("*.*")}
    expected = {f"figures/{name}.{ending}" for name in FIGURES for ending in ("png", "pdf")}
    expected |= {"report.html", "results.csv", "results_table.tex"}
    expected |= {"statistics_summary.json", "significance_tests.json"}
    assert expected <= names
    assert full.figures is not None
    for path in full.figures:
        starts = {".png": b"\x89PNG", ".pdf": b"%PDF"}
        assert path.read_bytes().startswith(starts[path.suffix])
        assert path.stat().st_size > 5000


def test_the_page_is_light_enough_for_a_phone(full: ReportPaths):
    assert full.html.stat().st_size < 400_000


def test_csv_round_trips_every_digit(full: ReportPaths):
    summary = json.loads(full.statistics[0].read_text())
    rows = {row["label"]: row for row in read_rows(full)}
    assert list(rows) == [m.label for m in full.report.models] + [
        "unigram",
        "bigram",
        "trigram",
        "4-gram",
        "5-gram",
    ]
    for label, model in summary["models"].items():
        nats = model["metrics"]["test"]["nats"]
        row = rows[label]
        assert float(row["nats_per_token"]) == nats["mean"]
        assert float(row["nats_low"]) == nats["t_interval"]["low"]
        assert float(row["nats_high"]) == nats["t_interval"]["high"]
        assert float(row["params_total"]) == MODELS[label].params
        assert row["seeds"] == " ".join(map(str, model["seeds"]))
    assert rows["hybrid"]["failed_seeds"] == "3"
    assert float(rows["trigram"]["nats_per_token"]) == NGRAMS[2]
    # One byte is one token here.
    assert float(rows["trigram"]["bits_per_byte"]) == pytest.approx(NGRAMS[2] / np.log(2))


def test_best_is_marked_only_where_every_verdict_says_so(study: Path, no_figures: None):
    clear = {"a": Made(1.5, 10**6, 1e7, 50), "b": Made(1.7, 10**6, 1e7, 80)}
    paths = build_report([experiment(study, models={**clear, "c": Made(1.8, 10**6, 1e7, 90)})])
    assert best(paths.report, 0) == "a"
    assert headlines(paths.report) == ["a is better than every other model."]
    marked = {row["label"]: row["best"] for row in read_rows(paths)}
    assert marked["a"] == "bits loss ms"
    assert marked["b"] == marked["c"] == ""


def test_close_models_are_not_ranked(full: ReportPaths):
    assert best(full.report, 0) is None
    assert unbeaten(full.report, 0) == ["tong", "standard"]
    assert all("loss" not in row["best"] for row in read_rows(full))


def test_equal_models_share_the_lead(study: Path, no_figures: None):
    same = {name: Made(1.7, 10**6, 1e7, 50) for name in "abc"}
    paths = build_report([experiment(study, models=same, spread=0.02)])
    assert headlines(paths.report) == ["No model is shown to be worse than any other."]


def test_a_model_that_does_not_beat_a_trigram_is_called_so(full: ReportPaths):
    line = next(text for text in texts(full).splitlines() if "broken or under-trained" in text)
    assert "Not better than a trigram" in line
    assert "standard-narrow (" in line
    assert "frozen-time" not in line
    flags = {row["label"]: row["beside_trigram"] for row in read_rows(full)}
    assert flags["standard-narrow"] == "worse"
    assert flags["frozen-time"] == "unclear"
    assert flags["standard"] == ""


def test_a_loss_below_the_entropy_of_the_data_is_called_so(study: Path, no_figures: None):
    paths = build_report([experiment(study, models=FEW, floor=1.8)])
    assert "standard is below the entropy of the data" in texts(paths)
    assert "shared is below" not in texts(paths)
    assert read_rows(paths)[-1]["kind"] == "floor"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"speed": False}, "no speed.json"),
        ({"baselines": False}, "no baselines.json"),
        ({"curves": False}, "no metrics.jsonl"),
        ({"plan": None}, "no plan.yaml"),
        ({"seeds": 1}, "Fewer than 3 seeds"),
        ({"seeds": 2}, "Fewer than 3 seeds"),
        ({"models": {"standard": MODELS["standard"]}}, None),
        ({"failed": [("tong", s) for s in range(5)]}, "No run of tong finished"),
        ({"failed": [(m, s) for m in FEW for s in range(5)]}, "No run of standard finished"),
        ({"seeds": 1, "speed": False, "baselines": False, "curves": False}, "no speed.json"),
    ],
    ids=str,
)
def test_what_is_missing_is_said(
    study: Path, no_figures: None, options: dict[str, Any], said: str | None
):
    paths = build_report([experiment(study, **{"models": FEW, "plan": PLAN, **options})])
    draw_all(paths)
    assert said is None or said in texts(paths)
    assert "report.html" in printed(paths)
    assert paths.html.stat().st_size > 10_000


def test_a_time_without_a_spread_has_no_quartiles(study: Path, no_figures: None):
    """Times of one seed, and of seeds that trained as one program, are one number."""
    alone = build_report([experiment(study, models=FEW, seeds=1, speed=False)])
    (model, *_) = alone.report.models
    assert model.speed is not None
    assert model.speed.q1 == model.speed.q3
    cells = re.findall(r'<td[^>]*data-column="ms".*?</td>', alone.html.read_text("utf-8"))
    assert len(cells) == len(FEW)
    assert not any("–" in cell for cell in cells)


def test_one_rate_for_all_is_called_so(study: Path, no_figures: None):
    paths = build_report([experiment(study, models=FEW)])
    assert "One learning rate, 0.0003, was given to all and chosen for none" in texts(paths)
    assert {row["learning_rate"] for row in read_rows(paths) if row["model"]} == {"0.0003"}
    assert 'id="rates"' not in paths.html.read_text()


def test_tried_rates_are_shown_and_an_end_of_the_grid_is_called_so(study: Path, no_figures: None):
    """Means over two seeds; a rate at which one failed was not to be chosen."""
    trials = {
        "standard": {1e-4: (2.0, 2.2), 3e-4: (1.8, 1.9), 1e-3: (1.7, None)},
        "tong": {1e-4: (1.8, 1.9), 3e-4: (2.0, 2.0), 1e-3: (2.1, 2.1)},
        "shared": {1e-4: (2.1, 2.1), 3e-4: (1.9, 2.0), 1e-3: (1.8, 1.8)},
    }
    chosen = {"standard": 3e-4, "tong": 1e-4, "shared": 1e-3}
    experiment(study, models=FEW, plan={**PLAN, "tune": {"grid": [1e-4, 3e-4, 1e-3]}})
    for path in study.glob("runs/*/*/record.json"):
        record = json.loads(path.read_text())
        record["training"]["optim"]["lr"] = chosen[record["label"]]
        write_record(path, record)
    missing = texts(build_report([study]))
    assert "no tuning.json" in missing
    assert "One learning rate" not in missing
    models = {
        label: {
            "chosen": chosen[label],
            "trials": [
                {"lr": lr, "seed": seed, "validation": loss}
                for lr, losses in each.items()
                for seed, loss in enumerate(losses, start=71)
            ],
        }
        for label, each in trials.items()
    }
    sure = sealed({"models": models})
    write_json(study / "tuning.json", {**sure, "models": {}})
    missing = texts(build_report([study]))
    assert "tuning.json was altered since it was written" in missing
    write_json(study / "tuning.json", sure)
    paths = build_report([study])
    rates = {model.label: model.rates for model in paths.report.models}
    assert rates["standard"].tried == {1e-4: 2.1, 3e-4: pytest.approx(1.85), 1e-3: None}
    assert {label: each.edge for label, each in rates.items()} == {
        "standard": None,
        "tong": "lowest",
        "shared": "highest",
    }
    said = printed(paths)
    assert "lowest learning rate that was tried is the best for tong:" in said
    assert "highest learning rate that was tried is the best for shared:" in said
    assert "<dd>0.001 (shared); 0.0003 (standard); 0.0001 (tong)</dd>" in paths.html.read_text()
    section = paths.html.read_text().partition('id="rates"')[2].partition("</section>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", section)
    bold = {
        re.findall(r"<th[^>]*>(.*?)</th>", row)[0]: re.findall("<b>(.*?)</b>", row) for row in rows
    }
    assert bold == {"Model": [], "standard": ["1.8500"], "tong": ["1.8500"], "shared": ["1.8000"]}
    assert "failed" in next(row for row in rows if "standard" in row)


def test_ngrams_that_counted_a_part_say_so(study: Path, no_figures: None):
    experiment(study, models=FEW)
    file = study / "baselines.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "train_tokens": 1000}))
    names = [row["label"] for row in read_rows(build_report([study]))]
    assert "trigram (first 1.00k tokens)" in names
    assert "trigram" not in names


def test_ngrams_of_what_the_models_saw_stand_beside_those_of_the_train_split(
    study: Path, no_figures: None
):
    experiment(study, models=FEW)
    file = study / "baselines.json"
    content = json.loads(file.read_text())
    worse = [{**each, "test": each["test"] + 0.5} for each in content["ngrams"]]
    file.write_text(json.dumps({**content, "seen": {"train_tokens": 1000, "ngrams": worse}}))
    paths = build_report([study])
    rows = {row["label"]: row for row in read_rows(paths)}
    losses = [
        float(rows[name]["nats_per_token"]) for name in ("trigram", "trigram (first 1.00k tokens)")
    ]
    assert losses[1] == pytest.approx(losses[0] + 0.5)
    trigram = paths.report.groups[0].ngram(3, "test")
    assert trigram is not None
    assert trigram.name == "trigram", "the verdicts go by the whole split"


def test_broken_side_files_are_named(study: Path, no_figures: None):
    experiment(study, models=FEW)
    (study / "speed.json").write_text('{"models": ')
    (study / "baselines.json").write_text("[1]")
    (study / "plan.yaml").write_text("a: [1")
    said = texts(build_report([study]))
    assert "speed.json cannot be read" in said
    assert "baselines.json is no object" in said
    assert "plan.yaml cannot be read" in said


def test_questions_without_a_model_stay_open(study: Path, no_figures: None):
    asked = [
        {"name": "first", "a": "tong", "b": "absent"},
        {"name": "second", "a": "tong", "b": "standard"},
        {"name": "third"},
    ]
    paths = build_report([experiment(study, models=FEW, plan={"questions": asked})])
    assert [question.name for question in paths.report.questions] == ["second"]
    assert "the question 'first' is left open: there are no runs of absent" in texts(paths)
    assert "lacks name, a or b" in texts(paths)


def test_experiments_are_merged(tmp_path: Path, no_figures: None):
    one = experiment(tmp_path / "one", models={"standard": MODELS["standard"]})
    two = experiment(tmp_path / "two", models={"tong": MODELS["tong"]})
    with pytest.raises(UserError, match="--out"):
        build_report([one, two])
    paths = build_report([one, two], tmp_path / "both")
    assert [model.label for model in paths.report.models] == ["tong", "standard"]
    assert len(paths.report.pairs) == 1
    assert "separate sessions" in texts(paths)
    assert "in turn over the models of one experiment" in paths.html.read_text("utf-8")
    assert not (one / "report.html").exists()


def test_losses_on_different_data_stand_apart(tmp_path: Path, no_figures: None):
    one = experiment(tmp_path / "one", models=FEW)
    two = experiment(tmp_path / "two", models={"hybrid": MODELS["hybrid"]}, spec="wikitext")
    paths = build_report([one, two], tmp_path / "both")
    draw_all(paths)
    assert [group.title for group in paths.report.groups] == [
        "wikitext, tokenizer bytes",
        "stdlib, tokenizer bytes",
    ]
    assert [row["label"] for row in read_rows(paths) if row["kind"] == "model"] == [
        "hybrid",
        "tong",
        "standard",
        "shared",
    ]
    assert "Losses compare only within a group" in texts(paths)


def test_validation_can_be_compared_but_is_called_optimistic(study: Path, no_figures: None):
    paths = build_report([experiment(study, models=FEW)], metric="validation", margin=0.2)
    assert "optimistic" in texts(paths)
    assert paths.report.tests["all_pairs"]["margin"] == 0.2
    assert read_rows(paths)[0]["metric"] == "validation"


@pytest.mark.parametrize(
    ("every", "panels"),
    [
        (EVERY, ["validation", "validation, last half", "train, smoothed"]),
        (STEPS // 2, ["validation", "train, smoothed"]),
    ],
)
def test_the_end_of_training_is_drawn_closer_if_there_is_more(
    tmp_path: Path, no_figures: None, every: int, panels: list[str]
):
    paths = build_report([experiment(tmp_path / "study", models=FEW, every=every)])
    figure = draw(printed_figures(paths.report)["training_curves"])
    assert [axes.get_title() for axes in figure.axes] == panels


def test_many_models_get_marks_of_their_own(study: Path, no_figures: None):
    many = {f"model-{i}": Made(1.7 + i / 100, 10**6 + i, 1e7, 50 + i) for i in range(12)}
    paths = build_report([experiment(study, models=many, seeds=3)])
    draw_all(paths)


def test_reports_are_reproducible(study: Path, no_figures: None):
    experiment(study, models=FEW)
    paths = build_report([study])
    before = [path.read_bytes() for path in (paths.html, paths.csv, paths.tex)]
    paths = build_report([study])
    assert [path.read_bytes() for path in (paths.html, paths.csv, paths.tex)] == before


def timed(study: Path, rounds: dict[str, list[float]]) -> ReportPaths:
    """A report of models that differ in nothing but the rounds of their speed measurement."""
    experiment(study, models={name: Made(1.7, 10**6, 1e7, 10) for name in rounds}, seeds=3)
    models = {}
    for name, each in rounds.items():
        q1, median, q3 = np.quantile(each, [0.25, 0.5, 0.75])
        models[name] = {"ms_per_step": {"median": median, "q1": q1, "q3": q3, "all": each}}
    write_json(study / "speed.json", {"rounds": 3, "models": models})
    return build_report([study])


BUSY = [6.1, 6.0, 6.2], [17.2, 16.8, 17.0]
SPEEDS = {
    "three rounds": ({"a": BUSY[0], "b": BUSY[1]}, None),
    "five rounds": ({"a": [6.0] * 5, "b": [17.0] * 5}, None),
    "seven rounds": ({"a": [6.0] * 7, "b": [17.0] * 7, "c": [6.1] * 7}, "a"),
    # The machine was busy in some rounds: as wide as the times spread, a is always ahead.
    "paired": ({"a": [6, 30, 7, 6, 31, 6, 8], "b": [7, 33, 8, 7, 34, 7, 9]}, "a"),
    "one round lost": ({"a": [6, 6, 6, 6, 6, 6, 20], "b": [7] * 7}, None),
    "equal": ({"a": [6.0] * 9, "b": [6.0] * 9}, None),
    "one of three close": ({"a": [6.0] * 9, "b": [5, 7] * 4 + [5], "c": [9.0] * 9}, None),
    "not paired": ({"a": [6.0] * 9, "b": [17.0] * 8}, None),
}


@pytest.mark.parametrize("case", SPEEDS)
def test_a_time_is_marked_only_where_the_rounds_support_it(
    study: Path, no_figures: None, case: str
):
    rounds, expected = SPEEDS[case]
    marked = [row["label"] for row in read_rows(timed(study, rounds)) if "ms" in row["best"]]
    assert marked == ([] if expected is None else [expected])


def test_times_of_two_sessions_are_not_ranked(tmp_path: Path, no_figures: None):
    slow, fast = Made(1.7, 10**6, 1e7, 90), Made(1.7, 10**6, 1e7, 10)
    one = experiment(tmp_path / "one", models={"slow": slow})
    two = experiment(tmp_path / "two", models={"fast": fast})
    rows = read_rows(build_report([one, two], tmp_path / "both"))
    assert all("ms" not in row["best"] for row in rows)


def test_the_terminal_shows_table_verdicts_and_path(full: ReportPaths):
    shown = re.sub(r"\s+", " ", printed(full))
    for row in read_rows(full):
        assert f"{float(row['nats_per_token']):.4f}" in shown
    for question in full.report.questions:
        for pair in question.pairs:
            assert pair["verdict"]["sentence"] in shown
    assert str(full.html) in shown


def test_labels_are_not_markup_in_the_terminal(study: Path, no_figures: None):
    odd = {"[bold]a": MODELS["tong"], "b[/]": MODELS["standard"]}
    shown = printed(build_report([experiment(study, models=odd)]))
    assert "[bold]a" in shown
    assert "b[/]" in shown


def test_the_verb(study: Path, no_figures: None, capsys: pytest.CaptureFixture[str]):
    experiment(study, models=FEW)
    assert main(["report", str(study), "--margin", "0.05"]) == 0
    assert "report.html" in capsys.readouterr().out
    assert main(["report", str(study / "nowhere")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("qkvflow: ")
    assert error.count("\n") == 1
    assert main(["report", str(study), "--margin", "-1"]) == 2


def test_a_record_with_the_least_fields_is_enough(study: Path, no_figures: None):
    for label, loss in (("a", 1.7), ("b", 1.9)):
        for seed in range(3):
            content = {
                "schema": 1,
                "status": "finished",
                "label": label,
                "seed": seed,
                "losses": {"validation": {"nats": loss}, "test": {"nats": loss + seed / 100}},
                **{key: {} for key in ("model", "params", "flops", "data", "budget", "training")},
                "speed": {},
            }
            write_json(study / "runs" / label / f"seed-{seed}" / "record.json", content)
    paths = build_report([study])
    draw_all(paths)
    assert "a" in printed(paths)
