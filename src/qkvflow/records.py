"""Records of runs: reading, writing and collecting them (`docs/records.md` has the format).

A record is what a run leaves behind when it is over, finished or failed. The statistics and the
report know nothing else. Nothing here knows JAX.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qkvflow.digests import was_altered, write_sealed
from qkvflow.errors import UserError
from qkvflow.runs.rundir import altered

SCHEMA = 1
FINISHED_SECTIONS = ("model", "params", "flops", "data", "budget", "training", "losses", "speed")


@dataclass(frozen=True)
class Record:
    """One run. `content` is the whole of `record.json`; the rest is what everybody asks for."""

    label: str
    seed: int
    finished: bool
    error: str | None
    content: Mapping[str, Any]
    run_dir: Path | None = None
    experiment: Path | None = None

    def section(self, name: str) -> Mapping[str, Any]:
        """A part of the record such as `params`; empty when a failed run never got that far."""
        return self.content.get(name) or {}

    def loss(self, split: str, unit: str) -> float | None:
        """Loss on `validation` or `test` in `nats`, `bits_per_byte` or as `perplexity`.

        None when it is absent or not finite.
        """
        losses = self.section("losses").get(split)
        return finite((losses or {}).get(unit))


@dataclass(frozen=True)
class Records:
    """All runs of one or several experiments, failed ones apart, sorted by label and seed."""

    finished: tuple[Record, ...]
    failed: tuple[Record, ...] = ()
    unfinished: tuple[tuple[str, int], ...] = ()
    experiments: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """Every label, also of models none of whose runs finished."""
        names = {record.label for record in self.finished + self.failed}
        return tuple(sorted(names | {label for label, _ in self.unfinished}))

    def of(self, label: str) -> tuple[Record, ...]:
        """The finished runs of a model, by seed."""
        return tuple(record for record in self.finished if record.label == label)

    def failures(self, label: str) -> tuple[Record, ...]:
        """The failed runs of a model, by seed."""
        return tuple(record for record in self.failed if record.label == label)


@dataclass(frozen=True)
class Curve:
    """The lines of `metrics.jsonl` by kind, one per step, in order of steps."""

    train: tuple[Mapping[str, Any], ...]
    validation: tuple[Mapping[str, Any], ...]
    torn_lines: int = 0


def finite(value: Any) -> float | None:
    """`value` as a float, or None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def write_record(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write `record.json` atomically, after checking that `read_record` will accept it."""
    _check(Path(path), content)
    write_sealed(Path(path), content)


def read_record(path: str | Path, *, experiment: Path | None = None) -> Record:
    """Read and check one `record.json`."""
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (ValueError, RecursionError):
        raise UserError(
            f"{path} is not complete JSON; delete it and start the same command again"
        ) from None
    if isinstance(content, dict) and was_altered(content):
        raise UserError(
            f"{path} was altered since it was written; delete it and start the same command again"
        )
    _check(path, content)
    return Record(
        label=content["label"],
        seed=content["seed"],
        finished=content["status"] == "finished",
        error=content.get("error"),
        content=content,
        run_dir=path.parent,
        experiment=experiment,
    )


def altered_files(record: Record) -> list[str]:
    """A line for each file of a run that was altered, while it was trained or since."""
    since = altered(record.run_dir or Path(), record.section("files"))
    return [*map(str, record.content.get("altered") or ()), *since]


def curve(run_dir: str | Path) -> Curve:
    """Read `metrics.jsonl`.

    A killed run leaves a torn line: the last one, or one in the middle if the run was continued.
    Such lines are counted and left out. A continued run repeats the steps since its checkpoint;
    the later line of a step replaces the earlier one.
    """
    path = Path(run_dir) / "metrics.jsonl"
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    by_kind: dict[str, dict[int, Mapping[str, Any]]] = {"train": {}, "validation": {}}
    torn = 0
    for line in lines:
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            by_kind.setdefault(entry["kind"], {})[int(entry["step"])] = entry
        except (ValueError, KeyError, TypeError):
            torn += 1
    # One broken line is an interrupted run; nothing but broken lines is some other file.
    if torn > 1 and not any(by_kind.values()):
        raise UserError(f"{path} holds no metrics; it is not a file of training metrics")
    ordered = {k: tuple(steps[s] for s in sorted(steps)) for k, steps in by_kind.items()}
    return Curve(train=ordered["train"], validation=ordered["validation"], torn_lines=torn)


def collect(directories: Iterable[str | Path] | str | Path) -> Records:
    """Read every run below one or several experiment directories.

    Runs of one label in several experiments are one model if their configurations agree (then a
    seed that was run twice counts once), and get the labels `label@experiment` if they differ.
    """
    if isinstance(directories, str | Path):
        directories = [directories]
    experiments = list(dict.fromkeys(Path(directory).resolve() for directory in directories))
    if not experiments:
        raise UserError("no experiment directory given")
    read: list[Record] = []
    unfinished: list[tuple[Path, str, int]] = []
    changed: list[str] = []
    for experiment in experiments:
        found, open_runs = _walk(experiment)
        read += found
        for record in found:
            changed += altered_files(record)
        unfinished += [(experiment, label, seed) for label, seed in open_runs]
    _refuse_mixtures(read)
    names, notes = _names(read, experiments)
    notes += changed
    kept: dict[tuple[str, int], Record] = {}
    for record in read:
        key = (names.get((record.experiment, record.label), record.label), record.seed)
        earlier = kept.get(key)
        if earlier is not None:
            notes.append(f"{key[0]} seed {key[1]} was run in several experiments; one is used")
        if earlier is None or (record.finished and not earlier.finished):
            kept[key] = replace(record, label=key[0])
    still_open = {(names.get((where, label), label), seed) for where, label, seed in unfinished}
    ordered = [kept[key] for key in sorted(kept)]
    return Records(
        finished=tuple(record for record in ordered if record.finished),
        failed=tuple(record for record in ordered if not record.finished),
        unfinished=tuple(sorted(still_open - set(kept))),
        experiments=tuple(experiments),
        notes=tuple(notes),
    )


def _walk(experiment: Path) -> tuple[list[Record], list[tuple[str, int]]]:
    """The records of one experiment, and (label, seed) of runs that have none yet."""
    runs = sorted((experiment / "runs").glob("*/seed-*"))
    if not experiment.exists():
        raise UserError(f"{experiment} does not exist; give the directory of a comparison")
    if not runs:
        raise UserError(f"{experiment} is not an experiment: it has no runs/LABEL/seed-S directory")
    records, unfinished = [], []
    for run in runs:
        path = run / "record.json"
        if path.exists():
            records.append(read_record(path, experiment=experiment))
        elif run.is_dir() and run.name.removeprefix("seed-").isdigit():
            unfinished.append((run.parent.name, int(run.name.removeprefix("seed-"))))
    seen: dict[tuple[str, int], Record] = {}
    for record in records:
        other = seen.setdefault((record.label, record.seed), record)
        if other is not record:
            raise UserError(
                f"{record.run_dir} and {other.run_dir} both say they are"
                f" {record.label} seed {record.seed}; remove one"
            )
    return records, unfinished


def _refuse_mixtures(records: list[Record]) -> None:
    """Within one experiment a label is one model on one corpus; anything else is a mistake."""
    first: dict[tuple[Path | None, str], Record] = {}
    for record in records:
        if record.finished:
            other = first.setdefault((record.experiment, record.label), record)
            if _setting(record) != _setting(other):
                raise UserError(
                    f"{record.run_dir} and {other.run_dir} have one label, {record.label}, but"
                    " different configurations; remove the runs of the older one"
                )


def _names(
    records: list[Record], experiments: list[Path]
) -> tuple[dict[tuple[Path | None, str], str], list[str]]:
    """(experiment, label) -> the label to use, for labels that mean different things."""
    settings: dict[str, dict[Path, str]] = {}
    for record in records:
        if record.finished and record.experiment is not None:
            by_experiment = settings.setdefault(record.label, {})
            mine = _setting(record) + _protocol(record)
            # Runs of unequal length cannot be told from runs of another budget, so a label
            # whose seeds differ in length is pooled with no other experiment.
            if by_experiment.setdefault(record.experiment, mine) != mine:
                by_experiment[record.experiment] = f"of {record.experiment} alone"
    short = _short_names(experiments)
    names: dict[tuple[Path | None, str], str] = {}
    notes: list[str] = []
    for label, by_experiment in settings.items():
        if len(set(by_experiment.values())) > 1:
            for experiment in experiments:
                names[experiment, label] = f"{label}@{short[experiment]}"
            notes.append(f"{label} has different configurations in different experiments")
    return names, notes


def _short_names(experiments: list[Path]) -> dict[Path, str]:
    """The shortest path endings that tell the experiments apart."""
    longest = max(len(experiment.parts) for experiment in experiments)
    names: dict[Path, str] = {}
    for length in range(1, longest + 1):
        names = {path: "/".join(path.parts[-length:]) for path in experiments}
        if len(set(names.values())) == len(experiments):
            break
    return names


def _setting(record: Record) -> str:
    """What makes two runs runs of the same model on the same data and batches."""
    data, training = record.section("data"), record.section("training")
    return _canonical(
        [
            record.section("model"),
            [data.get(key) for key in ("tokenizer", "vocab_size", "sha256")],
            [training.get(key) for key in ("batch_size", "context")],
        ]
    )


def _protocol(record: Record) -> str:
    """What must agree besides, before runs of two experiments count as one model."""
    return _canonical([record.section("training"), record.section("budget").get("steps")])


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _check(path: Path, content: Any) -> None:
    """Raise unless `content` is a record of this schema."""
    if not isinstance(content, Mapping) or "schema" not in content or "status" not in content:
        raise UserError(f"{path} is not a record of a run")
    if content["schema"] != SCHEMA:
        raise UserError(
            f"{path} has schema {content['schema']!r}, this version reads {SCHEMA};"
            " use the version that wrote it"
        )
    if content["status"] not in ("finished", "failed"):
        raise UserError(f"{path}: status must be finished or failed, not {content['status']!r}")
    if not isinstance(content.get("label"), str) or not content["label"]:
        raise UserError(f"{path}: label must be a name")
    if not isinstance(content.get("seed"), int) or isinstance(content["seed"], bool):
        raise UserError(f"{path}: seed must be a whole number")
    if content["status"] == "finished":
        for section in FINISHED_SECTIONS:
            if not isinstance(content.get(section), Mapping):
                raise UserError(f"{path}: a finished run must have '{section}'")
        if not isinstance(content["losses"].get("validation"), Mapping):
            raise UserError(f"{path}: a finished run must have 'losses.validation'")
