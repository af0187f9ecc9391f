"""A grid of runs and its law. An executor of the tests writes the losses that a known law gives."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparisons import content as plan_content

from qkvflow.cli import main
from qkvflow.errors import UserError
from qkvflow.experiment.executors.base import AbstractExecutor
from qkvflow.experiment.scaling_law import Grid, cells_of, cost_of, repeated, run_grid
from qkvflow.experiment.specs import parse_specs
from qkvflow.experiment.units import Queue
from qkvflow.files import write_json
from qkvflow.report.scaling_law import build_scaling, figures, sentences
from qkvflow.runs.config import make_config
from qkvflow.runs.record import failed_record
from qkvflow.runs.rundir import RECORD, read_run_config
from qkvflow.statistics.scaling_law import Fit
from qkvflow.zoo import ModelConfig

TRUE = {"E": 1.0, "A": 30.0, "B": 60.0, "alpha": 0.4, "beta": 0.4, "phi": 0.6}


@cache
def counted(config: ModelConfig) -> tuple[int, int]:
    return repeated(config, 27)


class Law(AbstractExecutor):
    """Every run has the loss of the law, and a little noise by its seed."""

    def __init__(self, most: int = 10**6) -> None:
        self.made, self._most = 0, most

    def run(self, queue: Queue, *, logs: Path, display: Any, caught: list[int]) -> None:
        while (unit := queue.take([])) is not None:
            if self.made == self._most:
                raise KeyboardInterrupt
            self.made += 1
            content = read_run_config(unit.file.parent)
            config = make_config(content)
            once, shared = counted(config.model.config)
            tokens = config.train.steps * config.tokens_per_step
            repeats = config.model.config.num_steps
            loss = float(Fit(TRUE, {}, (), ()).loss(once, shared, repeats, tokens))
            drawn = [config.train.seed, once, shared, repeats, tokens]
            noise = np.random.default_rng(drawn).normal(0, 0.002)
            record = failed_record(config, "")
            empty: Any = {key: {} for key in ("params", "flops", "data", "speed")}
            losses = {"validation": {"nats": 9.0}, "test": {"nats": loss * np.exp(noise)}}
            finished = {"status": "finished", "error": None, "losses": losses}
            made = {**record, **empty, **finished, "budget": {"seconds": 2.0}}
            write_json(unit.file, made)


def grid(text: Path, **changes: Any) -> Grid:
    base = plan_content(text)
    model = {"num_heads": 2, "context": 16}
    kept = {key: base[key] for key in ("data", "train", "optim")}
    given: dict[str, Any] = {
        "models": parse_specs(["standard,shared"]),
        "widths": (8, 16, 32),
        "depths": (1, 2, 4),
        "tokens": (10_000, 30_000, 90_000),
        "seeds": (0, 1),
        "content": {"model": model, **kept},
    }
    return Grid(**{**given, **changes})


@pytest.fixture(scope="module")
def whole(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("law") / "out"
    stopped = Law(most=7)
    with pytest.raises(KeyboardInterrupt):
        run_grid(grid(text), out, executor=stopped)
    again = Law()
    run_grid(grid(text), out, executor=again)
    assert (stopped.made, again.made) == (7, 2 * 27 * 2 - 7), "finished runs are not repeated"
    return out


def test_what_is_used_once_and_what_is_repeated():
    def count(**changes: Any) -> tuple[int, int]:
        shape = {"d_model": 8, "num_heads": 2, "num_steps": 3, "context": 4, **changes}
        return repeated(ModelConfig(**shape), 7)

    block = 12 * 8 * 8 + (3 + 1 + 4 + 1) * 8 + 2 * 2 * 8  # Matrices, biases, two norms.
    assert count() == (3 * block, 0)
    assert count(field="shared") == (0, block)
    assert count(field="shared", prelude=2, coda=1) == (3 * block, block)
    assert count(field="shared", prelude=2, coda=1, coda_norm=True) == (3 * block + 2 * 8, block)
    assert count(field="basis", num_basis=2)[0] == 0
    once, shared = count(field="low-rank", rank=1)
    assert shared == 12 * 8 * 8, "the base matrices; vectors and factors are of a layer each"
    assert once % 3 == 0


def test_the_law_of_the_runs_is_found(whole: Path):
    found = json.loads((whole / "scaling.json").read_text())
    assert len(found["points"]) == 2 * 27 * 2
    shared = found["fits"]["shared"]
    for name in ("phi", "alpha", "beta"):
        low, high = shared["intervals"][name]
        assert low <= TRUE[name] <= high
    assert abs(shared["values"]["phi"] - TRUE["phi"]) < 0.1
    assert found["fits"]["standard"]["values"]["phi"] == 0.0
    assert found["reference"] == "standard"
    assert {each["label"] for each in found["needs"]} == {"shared"}


def test_the_page_of_a_law(whole: Path):
    page = build_scaling(whole).read_text()
    assert "To reach standard" in page
    found = json.loads((whole / "scaling.json").read_text())
    assert sentences(found)[0].startswith("shared: a repeat of shared weights is worth phi = 0.")
    drawn = {each.name: each for each in figures(found)}
    assert list(drawn) == ["parameters", "flops", "tokens", "residuals"]
    assert [panel.title for panel in drawn["flops"].panels] == ["standard", "shared"]


def test_a_dry_run_counts(
    whole: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    cells = cells_of(grid(text), whole)
    cost = cost_of(grid(text), cells, workers=2)
    assert (cost["runs"], cost["finished"], cost["hours_left"]) == (108, 108, 0.0)
    assert cost["measured"]
    assert cost["flops"] == 2 * sum(
        cell.entry.flops_per_step * cell.entry.config.train.steps for cell in cells
    )
    words = ["scaling-law", "--models", "shared", "--widths", "8,16", "--depths", "2"]
    words += ["--tokens", "10k", "--seeds", "1", "--context", "16", "--heads", "2", "--dry-run"]
    words += ["--data", f"file:{text}?split=0.8,0.1,0.1", "--tokenizer", "char"]
    assert main([*words, "--workers", "1", "--out", str(tmp_path / "none")]) == 0
    said = capsys.readouterr().out
    assert "2 runs, 0 finished" in said
    assert "hours at 70.0GFLOP/s (assumed)" in said
    assert not (tmp_path / "none").exists()


def test_another_grid_is_refused_and_a_larger_one_goes_on(whole: Path, text: Path, tmp_path: Path):
    other = grid(text).content
    changed = {**other, "optim": {**other["optim"], "lr": 0.5}}
    with pytest.raises(UserError, match=r"another grid: optim.lr was 0.003, now 0.5"):
        run_grid(grid(text, content=changed), whole, executor=Law())
    models = parse_specs(["standard=standard:mlp_ratio=1", "shared"])
    with pytest.raises(UserError, match=r"models.standard.options.mlp_ratio was none, now 1"):
        run_grid(grid(text, models=models), whole, executor=Law())
    small = grid(text, models=parse_specs(["shared"]), tokens=(10_000,), seeds=(0,), widths=(8, 16))
    run_grid(small, tmp_path / "out", executor=Law())
    larger = grid(text, models=small.models, tokens=(10_000,), seeds=(0, 1), widths=(8, 16))
    more = Law()
    run_grid(larger, tmp_path / "out", executor=more)
    assert more.made == 6
    assert (tmp_path / "out" / "runs" / "shared" / "8-1-10000" / "seed-0" / RECORD).exists()


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"widths": ()}, "needs widths"),
        ({"depths": (2, 2)}, "different positive numbers"),
        ({"seeds": (1, 1)}, "a seed is given twice"),
        ({"reference": "stndard"}, "did you mean standard"),
    ],
)
def test_bad_grids_are_one_line(text: Path, changes: dict[str, Any], part: str):
    with pytest.raises(UserError, match=part):
        grid(text, **changes)
