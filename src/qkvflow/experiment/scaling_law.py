"""A grid of runs over widths, depths and training tokens, and the law fitted to their losses.

Every run is an ordinary one, in `runs/LABEL/WIDTH-DEPTH-TOKENS/seed-S/`. What a law calls N_once
and N_shared is counted on shapes: block parameters that grow with the number of steps belong to one
step each, the rest is used in every step. See docs/scaling-laws.md.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from qkvflow.compilation import use_compilation_cache
from qkvflow.digests import write_sealed
from qkvflow.errors import UserError, unknown
from qkvflow.experiment.display import Display, SilentDisplay
from qkvflow.experiment.executors import AbstractExecutor, ExecutorOptions, make_executor, perform
from qkvflow.experiment.plan import check_seeds, difference
from qkvflow.experiment.resolve import Entry, entry_of
from qkvflow.experiment.specs import ModelSpec
from qkvflow.experiment.units import Queue
from qkvflow.files import write_whole
from qkvflow.lm import abstract, count_parameters
from qkvflow.records import read_record
from qkvflow.runs import rundir
from qkvflow.runs.config import make_config
from qkvflow.runs.config_files import read_yaml
from qkvflow.runs.corpus import load_data
from qkvflow.statistics.scaling_law import fitted
from qkvflow.training.signals import signals
from qkvflow.zoo import ModelConfig

REQUEST, RESULT = "grid.yaml", "scaling.json"
FLOPS_PER_SECOND = 7e10
"""Of a worker on one core, until runs of the grid have shown their own speed."""
_OF_RUNS: dict[str, dict[str, Any]] = {
    "train": {"eval_tokens": None, "samples": "none"},
    "checkpoint": {"finished": "none"},
}


@dataclasses.dataclass(frozen=True)
class Grid:
    """Models x widths x depths x tokens x seeds, around one configuration."""

    models: tuple[ModelSpec, ...]
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    """Steps: layers of a field with layers of its own, loops of one that shares them."""
    tokens: tuple[int, ...]
    seeds: tuple[int, ...]
    content: Mapping[str, Any]
    """Sections of a configuration that all runs share."""
    reference: str = ""
    """Whose loss the others are to reach; the first model if not given."""
    evaluations: int = 4

    def __post_init__(self) -> None:
        for name in ("models", "widths", "depths", "tokens"):
            if not getattr(self, name):
                raise UserError(f"a grid needs {name}; give --{name}")
        for name in ("widths", "depths", "tokens"):
            given = getattr(self, name)
            if any(each < 1 for each in given) or len(set(given)) < len(given):
                raise UserError(f"{name} must be different positive numbers, not {list(given)}")
        labels = [spec.label for spec in self.models]
        if len(set(labels)) < len(labels):
            raise UserError("two models have one label; write LABEL=NAME")
        if any(spec.matched_to for spec in self.models):
            raise UserError("params_of and flops_of are not for a grid, which has its own widths")
        check_seeds(self.seeds)
        object.__setattr__(self, "reference", self.reference or labels[0])
        if self.reference not in labels:
            raise unknown("model of this grid", self.reference, labels)
        if self.evaluations < 1:
            raise UserError(f"evaluations must be at least 1, not {self.evaluations}")

    def to_dict(self) -> dict[str, Any]:
        content = {key: dict(value or {}) for key, value in self.content.items()}
        return {
            "models": [spec.to_dict() for spec in self.models],
            "widths": list(self.widths),
            "depths": list(self.depths),
            "tokens": list(self.tokens),
            "seeds": list(self.seeds),
            "reference": self.reference,
            "evaluations": self.evaluations,
            **content,
        }


@dataclasses.dataclass(frozen=True)
class Cell:
    """One point of the grid, run once for every seed."""

    entry: Entry
    place: Path
    once: int
    shared: int
    repeats: int
    tokens: int

    def run_dir(self, seed: int) -> Path:
        return self.place / f"seed-{seed}"

    @property
    def flops(self) -> float:
        return self.entry.flops_per_step * self.entry.steps


def cells_of(grid: Grid, directory: Path) -> list[Cell]:
    """Every cell, counted; refuses shapes that cannot be."""
    encoded = load_data(make_config(_OF_RUNS, dict(grid.content)))
    vocab_size = encoded.tokenizer.vocab_size
    cells = []
    for spec in grid.models:
        for width in grid.widths:
            for depth in grid.depths:
                shape = {**spec.changes, "d_model": width, "num_steps": depth}
                layer = {"model": shape, "optim": spec.optim}
                config = make_config(_OF_RUNS, dict(grid.content), layer)
                once, shared = repeated(config.model.config, vocab_size)
                entry = entry_of(spec.label, config, vocab_size)
                for tokens in grid.tokens:
                    cells.append(
                        Cell(
                            _with_tokens(entry, tokens, grid.evaluations),
                            directory / "runs" / spec.label / f"{width}-{depth}-{tokens}",
                            once,
                            shared,
                            depth,
                            tokens,
                        )
                    )
    return cells


def repeated(config: ModelConfig, vocab_size: int) -> tuple[int, int]:
    """Block parameters that a pass uses once, and those that every step of the core uses.

    What one more step would add is a step's own; a field that stores no more is shared.
    """
    here, more = (
        count_parameters(abstract(each, vocab_size=vocab_size)).blocks
        for each in (config, dataclasses.replace(config, num_steps=config.num_steps + 1))
    )
    own = count_parameters(
        abstract(
            dataclasses.replace(config, prelude=0, coda=0, coda_norm=False), vocab_size=vocab_size
        )
    ).blocks
    once = (more - here) * config.num_steps
    return here - own + once, own - once


def _with_tokens(entry: Entry, tokens: int, evaluations: int) -> Entry:
    config = entry.config
    steps = max(1, math.ceil(tokens / config.tokens_per_step))
    every = max(1, math.ceil(steps / evaluations))
    train = dataclasses.replace(config.train, steps=steps, tokens=None, eval_every=every)
    optim = dataclasses.replace(config.optim, warmup=min(config.optim.warmup, steps // 2))
    return dataclasses.replace(entry, config=dataclasses.replace(config, train=train, optim=optim))


def cost_of(grid: Grid, cells: Sequence[Cell], workers: int) -> dict[str, Any]:
    """Runs, FLOPs and hours that are left, and in all; by the speed of the runs that are there."""
    done = [
        (cell, read_record(path))
        for cell in cells
        for seed in grid.seeds
        if (path := cell.run_dir(seed) / rundir.RECORD).exists()
    ]
    seconds = sum(record.section("budget").get("seconds", 0.0) for _, record in done)
    spent = sum(cell.flops for cell, _ in done)
    speed = spent / seconds if seconds > 0 else FLOPS_PER_SECOND
    total = len(grid.seeds) * sum(cell.flops for cell in cells)
    return {
        "runs": len(grid.seeds) * len(cells),
        "finished": len(done),
        "flops": total,
        "flops_left": total - spent,
        "flops_per_second": speed * workers,
        "measured": seconds > 0,
        "hours_left": (total - spent) / speed / workers / 3600,
    }


def run_grid(
    grid: Grid,
    out: str | Path,
    *,
    executor: AbstractExecutor | None = None,
    display: Display | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Run a grid in a directory, or go on with it; returns `scaling.json`, the fits in it."""
    use_compilation_cache()
    directory, display = Path(out), display or SilentDisplay()
    executor = executor or make_executor("local", ExecutorOptions())
    cells = cells_of(grid, directory)
    with rundir.writing(directory, resumable=False):
        directory.mkdir(parents=True, exist_ok=True)
    with rundir.locked(directory), signals() as caught:
        _keep(directory, grid, command)
        units = [
            cell.entry.run(
                seed,
                cell.run_dir(seed),
                f"{cell.place.name} seed {seed}",
                group=directory.name,
            )
            for cell in cells
            for seed in grid.seeds
        ]
        perform(
            executor,
            Queue(units),
            units,
            what="the grid",
            logs=directory / "logs",
            display=display,
            caught=caught,
        )
        result = fitted(points_of(grid, cells), grid.reference)
        with rundir.writing(directory):
            write_sealed(directory / RESULT, result)
    return result


def points_of(grid: Grid, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """What each run that came to its end says."""
    points = []
    for cell in cells:
        for seed in grid.seeds:
            record = read_record(cell.run_dir(seed) / rundir.RECORD)
            loss = record.loss("test", "nats") or record.loss("validation", "nats")
            if record.finished and loss is not None:
                shape = cell.entry.config.model.config
                points.append(
                    {
                        "label": cell.entry.label,
                        "width": shape.d_model,
                        "once": cell.once,
                        "shared": cell.shared,
                        "repeats": cell.repeats,
                        "tokens": cell.entry.steps * cell.entry.config.tokens_per_step,
                        "flops": cell.flops,
                        "seed": seed,
                        "loss": loss,
                    }
                )
    if not points:
        raise UserError("no run of the grid came to its end; see the records below runs/")
    return points


def _keep(directory: Path, grid: Grid, command: str | None) -> None:
    """Write down what is asked. A grid may grow; what its runs are may not change."""
    path, request = directory / REQUEST, grid.to_dict()
    if path.exists():
        free = ("command", "reference", "models", "widths", "depths", "tokens", "seeds")
        asked = read_yaml(path), request
        of = [{model["label"]: model for model in each["models"]} for each in asked]
        both = sorted(of[0].keys() & of[1].keys())
        old, new = (
            {key: value for key, value in each.items() if key not in free}
            | {"models": [models[label] for label in both]}
            for each, models in zip(asked, of, strict=True)
        )
        if (differs := difference(old, new)) is not None:
            raise UserError(
                f"{directory} holds another grid: {differs}; choose another --out, or delete it"
            )
    elif any(each.name[0] != "." for each in directory.iterdir()):
        raise UserError(f"{directory} holds no grid and is not empty; choose another --out")
    text = yaml.safe_dump({**request, "command": command}, sort_keys=False, allow_unicode=True)
    with rundir.writing(directory, resumable=False):
        write_whole(path, text)
