"""The end of a fine-tuned run: what it gained and lost, and with `lora` the adapters alone."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qkvflow.distributed import hosts
from qkvflow.errors import UserError
from qkvflow.evaluation import evaluate
from qkvflow.files import to_json, write_whole
from qkvflow.finetune.adaptation import Adaptation, adapted_model
from qkvflow.finetune.adapters import FILE, save_adapter
from qkvflow.finetune.run import FINDINGS, REQUEST, read_findings
from qkvflow.lm import LanguageModel
from qkvflow.runs import rundir
from qkvflow.runs.corpus import load_split
from qkvflow.runs.load import Trained, load
from qkvflow.runs.weights import weights_hash
from qkvflow.training.reporter import Reporter
from qkvflow.training.step import model_key, split_model
from qkvflow.training.trainable import count_trained
from qkvflow.zoo.registry import COMPLETIONS


@COMPLETIONS.register("finetune")
def complete(directory: Path, reporter: Reporter) -> None:
    """Write what belongs to a fine-tuned run that has ended."""
    selected = (rundir.read_record(directory) or {}).get("losses", {}).get("selected_step")
    # Those of earlier versions do not say which step they are of.
    if (directory / FINDINGS).exists() and (
        read_findings(directory).get("step", selected) == selected
    ):
        return
    request = json.loads((directory / REQUEST).read_text("utf-8"))
    tuned = load(directory)
    try:
        base = load(request["base"], step=request["step"])
    except UserError as error:
        base = error
    hosts.on_rank0(lambda: _write(directory, request, tuned, base, reporter.note))


def _write(
    directory: Path,
    request: dict[str, Any],
    tuned: Trained,
    base: Trained | UserError,
    note: Callable[[str], None],
) -> None:
    adaptation, base_hash = Adaptation(**request["adaptation"]), tuned.config.train.start
    (directory / FINDINGS).unlink(missing_ok=True)  # Of an earlier step.
    if adaptation.method == "lora" and base_hash is not None:
        with rundir.writing(directory):
            save_adapter(tuned.model, adaptation, base_hash, directory / FILE)
    if isinstance(base, UserError):
        note(f"no {FINDINGS}: the pretrained run cannot be read ({base})")
        return
    if weights_hash(base.model) != base_hash:
        note(f"no {FINDINGS}: {request['base']} holds other weights than this run began from")
        return
    findings = _findings(base, request["base"], tuned, adaptation, note)
    findings["distillation"] = _distillation(request, tuned, findings["new_data"], note)
    with rundir.writing(directory):
        write_whole(directory / FINDINGS, to_json(findings, 1) + "\n")


def _findings(
    base: Trained,
    base_path: str,
    tuned: Trained,
    adaptation: Adaptation,
    note: Callable[[str], None],
) -> dict[str, Any]:
    """Losses before and after, on the new data and on the first: gain and forgetting."""
    most = tuned.config.train.eval_tokens
    key = model_key(tuned.config.train.seed)
    start = adapted_model(base, tuned.config.model.config, adaptation, key=key)

    def nats(model: LanguageModel, split: Any) -> float:
        return evaluate(model, split, max_tokens=most).nats

    new, _ = load_split(tuned, "validation")
    after = nats(tuned.model, new)
    findings: dict[str, Any] = {
        "base": base_path,
        "base_sha256": tuned.config.train.start,
        "base_step": base.step,
        "step": tuned.step,
        **dataclasses.asdict(adaptation),
        "num_steps": {"before": base.model.num_steps, "after": tuned.model.num_steps},
        "scheme": {
            "before": base.config.model.config.scheme,
            "after": tuned.config.model.config.scheme,
        },
        "parameters": {
            "total": count_trained(split_model(tuned.model)[0], "all"),
            "trained": count_trained(split_model(tuned.model)[0], tuned.config.train.trainable),
        },
        "new_data": {
            "spec": tuned.config.data.spec,
            "frozen": nats(base.model, new),
            "frozen_at_this_depth": nats(start, new),
            "tuned": after,
        },
        "first_data": None,
    }
    try:
        first, _ = load_split(base, "validation")
    except UserError as error:
        note(f"forgetting is not known: the first corpus cannot be read ({error})")
        return findings
    before, now = nats(base.model, first), nats(tuned.model, first)
    findings["first_data"] = {
        "spec": base.config.data.spec,
        "before": before,
        "after": now,
        "forgetting": now - before,
    }
    return findings


def _distillation(
    request: dict[str, Any], tuned: Trained, new_data: dict[str, Any], note: Callable[[str], None]
) -> dict[str, Any] | None:
    """The controls side by side, on the new data: this model before and after, its teacher, and
    the teacher trained equally long."""
    distill, most = tuned.config.distill, tuned.config.train.eval_tokens
    if distill.teacher is None:
        return None
    new, _ = load_split(tuned, "validation")

    def nats(path: str | None) -> float | None:
        try:
            return None if path is None else evaluate(load(path).model, new, max_tokens=most).nats
        except UserError as error:
            note(f"a control cannot be read: {error}")
            return None

    return {
        **dataclasses.asdict(distill),
        "before": new_data["frozen_at_this_depth"],
        "after": new_data["tuned"],
        "teacher_loss": nats(distill.teacher),
        "control": request.get("control"),
        "teacher_trained": nats(request.get("control")),
    }
