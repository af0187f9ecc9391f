"""From records and the files beside them to the content of a report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkvflow.records import Curve, Record, Records, finite
from qkvflow.report import curves as bands
from qkvflow.report.baselines import groups_of
from qkvflow.report.content import DepthLoss, Model, Question, Rates, Reach, Report, Speed
from qkvflow.report.files import last_sample, read_json, read_plan
from qkvflow.statistics import time_to_threshold

NO_SPEED = "times per step are those of training, not measured on their own"
NO_BASELINES = "no n-gram stands beside the models"
NO_TUNING = "which learning rates were tried is not shown"
PARAMS = ("total", "embedding", "blocks", "head", "in_effect")


def plans_of(records: Records, missing: list[str]) -> dict[Path, tuple[str | None, Mapping]]:
    """Text and content of every experiment's plan."""
    return {
        directory: read_plan(directory / "plan.yaml", missing) for directory in records.experiments
    }


def named_pairs(
    records: Records, plans: Mapping[Path, tuple[str | None, Mapping]], missing: list[str]
) -> list[tuple[str, str, str]]:
    """The plans' questions as (name, label a, label b), without those that lack a model."""
    names = {
        (record.experiment, record.content["label"]): record.label
        for record in records.finished + records.failed
    }
    pairs: dict[tuple[str, str, str], None] = {}
    for directory, (_, plan) in plans.items():
        for question in plan.get("questions") or ():
            try:
                name, *labels = (str(question[key]) for key in ("name", "a", "b"))
            except (KeyError, TypeError):
                missing.append(f"a question of {directory.name}/plan.yaml lacks name, a or b")
                continue
            a, b = (names.get((directory, label), label) for label in labels)
            absent = [label for label in (a, b) if label not in records.labels]
            if absent or a == b:
                why = f"there are no runs of {absent[0]}" if absent else f"{a} is named twice"
                missing.append(f"the question '{name}' is left open: {why}")
            else:
                pairs[name, a, b] = None
    return list(pairs)


def gather(
    directory: Path,
    records: Records,
    summary: Mapping[str, Any],
    tests: Mapping[str, Any],
    plans: Mapping[Path, tuple[str | None, Mapping]],
    missing: list[str],
    *,
    metric: str,
) -> Report:
    """Read what stands beside the records and put everything in order."""
    speeds = {d: read_json(d / "speed.json", missing, NO_SPEED) for d in records.experiments}
    counts = {
        d: read_json(d / "baselines.json", missing, NO_BASELINES) for d in records.experiments
    }
    trials = {
        d: read_json(d / "tuning.json", missing, NO_TUNING)
        for d, (_, content) in plans.items()
        if content.get("tune")
    }
    measured = [d.name for d, content in speeds.items() if content]
    if len(measured) > 1:
        missing.append(
            f"speed was measured in separate sessions ({', '.join(measured)}), not in turn:"
            " compare times within an experiment"
        )
    curves = {label: bands.read(records.of(label)) for label in records.labels}
    groups = groups_of(records, counts, curves, metric)
    place = {label: number for number, group in enumerate(groups) for label in group.labels}
    kind = _memory_kind(records, speeds)
    plan = next((content for _, content in plans.values() if content), {})
    models = [
        _model(
            records,
            label,
            summary["models"][label],
            index,
            place[label],
            curves[label],
            list(groups[place[label]].thresholds),
            speeds,
            trials,
            kind,
        )
        for index, label in enumerate(_order(records, plan))
    ]
    for label in records.labels:
        runs = records.of(label)
        lost = sum(_unsolved(run) for run in runs)
        if lost:
            missing.append(
                f"a solver ran out of steps for {lost} of {len(runs)} seeds of {label}:"
                " there is no loss of theirs at its depth"
            )
        for part, missed, batches in _missed(runs):
            missing.append(
                f"the solver of {label} did not arrive in {missed} of {batches} {part}, all seeds"
                " together: what it lost there is not what it solves"
            )
    no_curves = [label for label in records.labels if records.of(label) and not curves[label]]
    if no_curves:
        missing.append(f"no metrics.jsonl, hence no training curve: {', '.join(no_curves)}")
    return Report(
        directory=directory,
        records=records,
        metric=metric,
        summary=summary,
        tests=tests,
        models=tuple(sorted(models, key=lambda model: _place(model, metric))),
        groups=tuple(groups),
        plans={d.name: text for d, (text, _) in plans.items() if text},
        plan=plan,
        questions=_questions(tests),
        memory_kind=kind,
        missing=tuple(dict.fromkeys(missing)),
    )


def _order(records: Records, plan: Mapping[str, Any]) -> list[str]:
    """Labels as the plan has them, then the rest: what colours follow."""
    models = plan.get("models")
    wanted = [
        m.get("label") or m.get("name") if isinstance(m, Mapping) else m for m in models or ()
    ]
    known = [label for label in dict.fromkeys(map(str, wanted)) if label in records.labels]
    return known + [label for label in records.labels if label not in known]


def _place(model: Model, metric: str) -> tuple[int, float, str]:
    mean = model.metric(metric)["mean"]
    return model.group, float("inf") if mean is None else mean, model.label


def _questions(tests: Mapping[str, Any]) -> tuple[Question, ...]:
    pairs = (tests.get("named_pairs") or {}).get("pairs", [])
    names = dict.fromkeys(pair["name"] for pair in pairs)
    return tuple(Question(n, tuple(p for p in pairs if p["name"] == n)) for n in names)


def _model(
    records: Records,
    label: str,
    summary: Mapping[str, Any],
    index: int,
    group: int,
    curves: Mapping[int, Curve],
    thresholds: Sequence[float],
    speeds: Mapping[Path, Mapping[str, Any]],
    trials: Mapping[Path, Mapping[str, Any]],
    memory_kind: str,
) -> Model:
    runs = records.of(label)
    model = runs[0].section("model") if runs else {}
    params = runs[0].section("params") if runs else {}
    speed = _speed(runs, speeds)
    steps = summary["budget"]["steps"]
    seconds = summary["budget"]["seconds"]
    if speed is not None and speed.measured and steps is not None:
        seconds = speed.median * steps / 1e3
    config = model.get("config")
    return Model(
        label=label,
        index=index,
        group=group,
        summary=summary,
        config=config if isinstance(config, Mapping) else {},
        name=model.get("name"),
        kinds={key: model.get(key) for key in ("field", "block", "scheme")},
        params={key: finite(params.get(key)) for key in PARAMS},
        flops_per_token=_flops_per_token(runs),
        flops=summary["budget"]["flops"],
        seconds=seconds,
        speed=speed,
        memory=_median([_memory(run, speeds, memory_kind) for run in runs]),
        still_falling=_still_falling(runs, curves),
        skipped_updates=sum(int(finite(r.content.get("skipped_updates")) or 0) for r in runs),
        rates=_rates(runs, trials),
        train=bands.band(list(curves.values()), "train"),
        validation=bands.band(list(curves.values()), "validation"),
        evaluations=_evaluations(runs),
        reach={threshold: _reach(runs, curves, threshold) for threshold in thresholds},
        sample=last_sample(runs),
    )


def _flops_per_token(runs: Sequence[Record]) -> float | None:
    """Training FLOPs of a step over its tokens, so that weight generation is in it."""
    for run in runs:
        flops, training = run.section("flops"), run.section("training")
        step = finite(flops.get("per_step"))
        shape = [finite(training.get(key)) for key in ("batch_size", "context")]
        if step is not None and shape[0] and shape[1]:
            return step / (shape[0] * shape[1])
        per_token = flops.get("per_token") or {}
        if finite(per_token.get("training")) is not None:
            return finite(per_token.get("training"))
    return None


def _entry(run: Record, files: Mapping[Path, Mapping[str, Any]]) -> Mapping[str, Any]:
    """What a file of a run's experiment, such as `speed.json`, says about its model."""
    content = files.get(run.experiment, {}) if run.experiment else {}
    entry = (content.get("models") or {}).get(run.content["label"])
    return entry if isinstance(entry, Mapping) else {}


def _rates(runs: Sequence[Record], trials: Mapping[Path, Mapping[str, Any]]) -> Rates:
    optims = [run.section("training").get("optim") or {} for run in runs]
    used = {finite(optim.get("lr")) for optim in optims}
    tried: dict[float, list[float | None]] = {}
    for trial in _entry(runs[0], trials).get("trials") or () if runs else ():
        # One search over more than rates has too many points for a table of rates.
        searched = trial.get("values") or {"optim.lr": trial.get("lr")}
        rate = finite(searched.get("optim.lr")) if len(searched) == 1 else None
        if rate is not None:
            loss = trial.get("loss") if "values" in trial else trial.get("validation")
            tried.setdefault(rate, []).append(finite(loss))
    means = {
        rate: None if None in losses else float(np.mean([x for x in losses if x is not None]))
        for rate, losses in sorted(tried.items())
    }
    return Rates(used.pop() if len(used) == 1 else None, means)


def _speed(runs: Sequence[Record], speeds: Mapping[Path, Mapping[str, Any]]) -> Speed | None:
    for run in runs:
        entry = _entry(run, speeds)
        times = entry.get("ms_per_step") or {}
        median = finite(times.get("median"))
        if median is not None:
            q1, q3 = (finite(times.get(key)) for key in ("q1", "q3"))
            rounds = [finite(value) for value in times.get("all") or ()]
            return Speed(
                median=median,
                q1=median if q1 is None else q1,
                q3=median if q3 is None else q3,
                rounds=tuple(value for value in rounds if value is not None),
                measured=True,
                tokens_per_second=finite(entry.get("tokens_per_second")),
                compile_seconds=finite(entry.get("compile_seconds")),
                session=None if None in rounds else str(run.experiment),
            )
    times = []
    for run in runs:
        steps, seconds = (finite(run.section("budget").get(k)) for k in ("steps", "seconds"))
        if steps and seconds is not None:
            times.append(1e3 * seconds / steps)
    if not times:
        return None
    spoken = [run.section("speed") for run in runs]
    return Speed(
        *(float(np.quantile(times, share)) for share in (0.5, 0.25, 0.75)),
        rounds=tuple(times),
        measured=False,
        tokens_per_second=_median([finite(s.get("tokens_per_second")) for s in spoken]),
        compile_seconds=_median([finite(s.get("compile_seconds")) for s in spoken]),
    )


def _memory_kind(records: Records, speeds: Mapping[Path, Mapping[str, Any]]) -> str:
    """`program` if every model has it, else `resident`: one column is one quantity."""
    for label in records.labels:
        runs = records.of(label)
        if runs and all(_memory(run, speeds, "program") is None for run in runs):
            return "resident"
    return "program"


def _memory(run: Record, speeds: Mapping[Path, Mapping[str, Any]], kind: str) -> float | None:
    measured, own = _entry(run, speeds), run.section("memory")
    key = {"program": "program_bytes", "resident": "peak_resident_bytes"}[kind]
    found = finite(measured.get(f"{kind}_bytes"))
    return finite(own.get(key)) if found is None else found


def _still_falling(runs: Sequence[Record], curves: Mapping[int, Curve]) -> bool:
    """Whether every seed was at its best at the last evaluation."""
    ends = []
    for run in runs:
        selected = finite(run.section("losses").get("selected_step"))
        lines = curves[run.seed].validation if run.seed in curves else ()
        if selected is None or not lines:
            return False
        ends.append(selected >= lines[-1]["step"])
    return bool(ends) and all(ends)


def _evaluations(runs: Sequence[Record]) -> tuple[DepthLoss, ...]:
    found: dict[tuple[int | None, str], list[float]] = {}
    for run in runs:
        for entry in run.content.get("evaluations") or ():
            nats, steps = finite(entry.get("nats")), finite(entry.get("num_steps"))
            if nats is not None:
                key = (None if steps is None else int(steps), str(entry.get("scheme") or "trained"))
                found.setdefault(key, []).append(nats)
    ordered = sorted(found.items(), key=lambda item: (item[0][1], item[0][0] or 10**9))
    return tuple(
        DepthLoss(steps, scheme, float(np.mean(v)), min(v), max(v), len(v))
        for (steps, scheme), v in ordered
    )


def _unsolved(run: Record) -> bool:
    found = run.content.get("evaluations") or ()
    return any("nats" in each and each["nats"] is None for each in found)


def _missed(runs: Sequence[Record]) -> list[tuple[str, int, int]]:
    """Where a solver gave up in training and evaluations: what, how often, of how many."""
    words = {"train": "training steps", "validation": "validation batches", "test": "test batches"}
    found = []
    for part, word in words.items():
        works = [run.section("solver").get(part) or {} for run in runs]
        missed, batches = (
            int(sum(finite(work.get(key)) or 0 for work in works)) for key in ("missed", "batches")
        )
        if missed:
            found.append((word, missed, batches))
    return found


def _reach(runs: Sequence[Record], curves: Mapping[int, Curve], threshold: float) -> Reach:
    seconds, flops = [], []
    for run in runs:
        if run.seed not in curves:
            continue
        own = curves[run.seed]
        seconds.append(time_to_threshold(own, threshold, by="seconds"))
        step = time_to_threshold(own, threshold, by="step")
        per_step = finite(run.section("flops").get("per_step"))
        flops.append(None if step is None or per_step is None else step * per_step)
    reached = sum(value is not None for value in seconds)
    return Reach(reached, len(runs), _median(seconds), _median(flops))


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None
