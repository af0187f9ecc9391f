"""How a run ends: whole-split losses at the selected checkpoint, and the record."""

from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

from qkvflow.files import to_json, write_whole
from qkvflow.parallel import hosts
from qkvflow.training import rundir
from qkvflow.training.evaluate import Evaluator
from qkvflow.training.loop import Loop, Progress, abstract_state
from qkvflow.training.record import make_record, now
from qkvflow.training.step import State


def finish(loop: Loop, state: State, params: Any, progress: Progress) -> dict[str, Any]:
    """Whole-split losses at the selected checkpoint, and the record."""
    selected, final = progress.step, state
    wanted = progress.best_step if loop.config.checkpoint.best else None
    loop.checkpoints.wait()
    if wanted is not None and wanted != progress.step:
        if wanted in loop.checkpoints.steps():
            like = loop.layout.like(abstract_state(loop.config, params))
            selected, final = wanted, loop.checkpoints.restore(wanted, like)
        else:
            loop.reporter.note(f"the best checkpoint, of step {wanted}, is gone; using the last")
    chosen = loop.params(final)
    evaluations = {}
    for name in ("validation", "test"):
        split = getattr(loop.encoded, name)
        if len(split) < 2:
            evaluations[name] = None
            continue
        evaluations[name] = Evaluator(
            loop.static,
            split,
            context=loop.config.context,
            batch_size=loop.evaluation_batch,
            layout=loop.layout,
        )(chosen)
    return write_record(loop, params, progress, selected_step=selected, **evaluations)


def write_record(
    loop: Loop,
    params: Any,
    progress: Progress,
    *,
    error: str | None = None,
    selected_step: int | None = None,
    validation: Any = None,
    test: Any = None,
) -> dict[str, Any]:
    record = make_record(
        loop.config,
        eqx.combine(params, loop.static),
        loop.encoded,
        label=progress.label or loop.config.model.name,
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
    record["hardware"] |= {"mesh": str(loop.layout.shape), "processes": hosts.count()}
    if hosts.is_first():
        with rundir.writing(loop.directory):
            write_whole(loop.directory / rundir.RECORD, to_json(record, 1) + "\n")
    return record


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
