"""How a run ends: losses on whole splits at the selected checkpoint, and the record."""

from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

from qkvflow.digests import sealed, write_sealed
from qkvflow.distributed import hosts
from qkvflow.errors import UserError
from qkvflow.evaluation.losses import Evaluation, Solved
from qkvflow.evaluation.probes import measure_probe
from qkvflow.evaluation.sweep import evaluate_depths
from qkvflow.runs import rundir
from qkvflow.runs.depths import parse_depths, parse_levels
from qkvflow.runs.record import make_record, now
from qkvflow.training.loop import Loop, Progress
from qkvflow.training.step import TrainState


def finish(loop: Loop, state: TrainState, progress: Progress) -> dict[str, Any]:
    """Losses on whole splits at the selected checkpoint, a last sample, and the record."""
    program, config = loop.program, loop.config
    selected, params = progress.step, program.evaluation_params(state)
    wanted = progress.best_step if config.checkpoint.best else None
    loop.checkpoints.wait()
    if wanted is not None and wanted != progress.step:
        if wanted in loop.checkpoints.steps():
            selected = wanted
            params = loop.checkpoints.restore_model(wanted, program.state_parts()[0])
        else:
            loop.reporter.note(f"the best checkpoint, of step {wanted}, is gone; using the last")
    loop.reporter.note(f"evaluating the weights of step {selected} on the whole splits")
    splits = ("validation", "test") if config.train.eval_test else ("validation",)
    found = {name: _evaluation(loop, name, selected, params) for name in splits}
    losses = {name: None if each is None else each.summary() for name, each in found.items()}
    if config.train.samples == "last":
        with rundir.writing(loop.directory):
            loop.sample(params, progress)
    record = _record(loop, progress, error=None, selected_step=selected, **losses)
    for name, each in found.items():
        if each is not None and each.solved is not None:
            record["solver"][name] = each.solved._asdict()
    if depths := parse_depths(config.train.eval_depths):
        record["evaluations"] = evaluate_depths(
            eqx.combine(program.layout.gathered(params), program.static),
            config.model.config,
            loop.encoded.validation,
            depths,
        )
    if loop.encoded.corpus.answers is not None:
        _probe(loop, params, record)
    record = sealed({**record, "files": rundir.describe_growing(loop.directory)})
    _write(loop, record)
    loop.tracker.finish(record)
    if config.checkpoint.finished != "all":
        loop.checkpoints.forget(selected if config.checkpoint.finished == "best" else None)
    return record


def _probe(loop: Loop, params: Any, record: dict[str, Any]) -> None:
    """The accuracy on the answers, where the tokens are the probe's own."""
    encoded, levels = loop.encoded, parse_levels(loop.config.train.eval_levels)
    model = eqx.combine(loop.program.layout.gathered(params), loop.program.static)
    name = "test" if loop.config.train.eval_test and len(encoded.test) else "validation"
    try:
        record["accuracy"] = measure_probe(
            model,
            getattr(encoded, name),
            encoded.corpus,
            encoded.tokenizer,
            name=name,
            levels=levels,
        )
    except UserError as error:
        loop.reporter.note(f"no accuracy: {error}")


def _evaluation(loop: Loop, split: str, step: int, params: Any) -> Evaluation | None:
    """On a whole split; not once more where the loop has seen just that."""
    if split == "validation" and loop.whole_validation is not None:
        seen, evaluation = loop.whole_validation
        if seen == step:
            return evaluation
    if len(getattr(loop.encoded, split)) < 2:
        return None
    return loop.evaluator(split)(params)


def fail(loop: Loop, progress: Progress, error: str) -> None:
    """The record of a run that cannot go on."""
    _write(loop, _record(loop, progress, error=error))


def _record(
    loop: Loop,
    progress: Progress,
    *,
    error: str | None,
    selected_step: int | None = None,
    validation: Any = None,
    test: Any = None,
) -> dict[str, Any]:
    trained = _trained(progress)
    record = make_record(
        loop.config,
        loop.program.model,
        loop.encoded,
        flops_per_step=loop.program.flops_as_run(trained and trained.evaluations),
        error=error,
        steps=progress.step,
        skipped=progress.skipped,
        seconds=progress.seconds,
        compile_seconds=progress.compile_seconds,
        program_bytes=loop.program_bytes,
        train_loss=_train_loss(loop.directory, progress.step),
        validation=validation,
        test=test,
        selected_step=selected_step,
        started=progress.started or now(),
    )
    if trained is not None:
        record["solver"] = {"train": trained._asdict()}
    if progress.altered:
        record["altered"] = progress.altered
    record["hardware"] |= {"mesh": str(loop.program.layout.shape), "processes": hosts.count()}
    return record


def _trained(progress: Progress) -> Solved | None:
    """What a solver did in training."""
    if not progress.solved:
        return None
    mean = progress.evaluations / progress.solved
    return Solved(progress.solved, progress.missed, mean, progress.residual)


def _write(loop: Loop, record: dict[str, Any]) -> None:
    if hosts.is_rank0():
        with rundir.writing(loop.directory):
            write_sealed(loop.directory / rundir.RECORD, record)


def _train_loss(directory: Path, steps: int) -> float | None:
    """The mean of the lines of the last tenth of training."""
    lines = [
        line
        for line in rundir.read_lines(directory / rundir.METRICS)
        if line.get("kind") == "train" and line.get("loss") is not None
    ]
    last = [line["loss"] for line in lines if line["step"] > 0.9 * steps] or [
        line["loss"] for line in lines[-1:]
    ]
    return float(np.mean(last)) if last else None
