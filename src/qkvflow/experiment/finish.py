"""What a run of a comparison leaves behind: its record, its sample and its weights."""

import shutil
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from qkvflow.errors import UserError
from qkvflow.experiment.ensemble import Ensemble
from qkvflow.experiment.group import Member
from qkvflow.experiment.records import curve
from qkvflow.experiment.resolve import Entry
from qkvflow.files import write_whole
from qkvflow.inference import sample_text
from qkvflow.lm import LanguageModel
from qkvflow.training import rundir
from qkvflow.training.evaluate import Evaluation
from qkvflow.training.export import MODEL, write_export
from qkvflow.training.record import make_record, now
from qkvflow.training.run import Trained


def record_of(
    entry: Entry, ensemble: Ensemble, member: Member, test: Evaluation | None
) -> dict[str, Any]:
    """The content of `record.json`; of a failed run, what is known of it."""
    progress, program = member.progress, ensemble.program_bytes
    record = make_record(
        entry.run(member.seed, member.lr),
        ensemble.model,
        ensemble.encoded,
        label=entry.label,
        error=member.error,
        steps=progress.step,
        skipped=progress.skipped,
        seconds=progress.seconds,
        compile_seconds=ensemble.compile_seconds,
        program_bytes=None if program is None else program // ensemble.size,
        train_loss=_train_loss(member.directory, progress.step),
        validation=None if member.error else member.validation,
        test=None if member.error else test,
        selected_step=None if member.error else progress.best_step,
        started=progress.started or now(),
    )
    # The process trains every model in turn: its peak is nobody's own. See speed.json.
    record["memory"]["peak_resident_bytes"] = None
    record["speed"]["seeds_per_program"] = ensemble.size
    return record


def write_weights(entry: Entry, ensemble: Ensemble, member: Member, record: dict[str, Any]) -> None:
    """`model/`: an export of the selected parameters, for eval, generate and analyze."""
    to = member.directory / MODEL
    shutil.rmtree(to, ignore_errors=True)  # Of a process that was killed before its record.
    trained = Trained(
        _selected(ensemble, member),
        ensemble.encoded.tokenizer,
        entry.run(member.seed, member.lr),
        member.progress.best_step,
    )
    write_export(trained, to, record)


def _selected(ensemble: Ensemble, member: Member) -> LanguageModel:
    return eqx.combine(jax.tree.map(jnp.asarray, member.best), ensemble.static)


def write_sample(ensemble: Ensemble, member: Member) -> None:
    """`samples.txt`: text generated at the selected parameters."""
    try:
        text = sample_text(
            _selected(ensemble, member), ensemble.encoded.tokenizer, seed=member.seed
        )
    except UserError as error:  # Not every scheme can generate token by token.
        text = f"(no sample: {error})"
    content = f"--- step {member.progress.best_step} ---\n{text}\n\n"
    with rundir.writing(member.directory):
        write_whole(member.directory / rundir.SAMPLES, content)


def _train_loss(directory: Path, steps: int) -> float | None:
    """The mean of the lines of the last tenth of training."""
    try:
        lines = [line for line in curve(directory).train if line.get("loss") is not None]
    except UserError:
        return None
    last = [line["loss"] for line in lines if line["step"] > 0.9 * steps] or [
        line["loss"] for line in lines[-1:]
    ]
    return sum(last) / len(last) if last else None
