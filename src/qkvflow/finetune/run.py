"""Fine-tuning as a run: an ordinary run directory that began from pretrained weights.

Besides what every run leaves there is `finetune.json`, what it gained on the new data and lost on
the first, and with `lora` the adapters alone, `adapter.safetensors`. They are made when a run ends,
also one that was interrupted and resumed: `.finetune.json` remembers what was asked.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from qkvflow.distributed import hosts
from qkvflow.errors import UserError
from qkvflow.files import to_json, write_whole
from qkvflow.finetune.adaptation import METHODS, Adaptation, adapted_model, model_changes
from qkvflow.runs import rundir
from qkvflow.runs.config import RunConfig, make_config
from qkvflow.runs.load import Trained, load
from qkvflow.runs.sections import DistillConfig
from qkvflow.runs.weights import weights_hash
from qkvflow.training.reporter import Reporter, SilentReporter
from qkvflow.training.run import train
from qkvflow.training.step import model_key

FINDINGS, REQUEST = "finetune.json", ".finetune.json"
TRAIN = "train"
"""The control that is still to be made."""


def finetune(
    base_path: str | Path,
    out: str | Path,
    *,
    adaptation: Adaptation,
    data: str,
    data_dir: str | None = None,
    overrides: dict[str, Any] | None = None,
    step: int | str = "best",
    reporter: Reporter | None = None,
    mesh: str | None = None,
    control: str | Path | None = None,
) -> dict[str, Any]:
    """Continue a pretrained run (or export) on other data; returns the content of `record.json`.

    `overrides` are sections of the configuration, on top of the pretrained run's own; `mesh` says
    how devices are used, as in `train`. Where there is a teacher (`distill.teacher`), `control` is
    its own fine-tuned run on the same data, equally long, for the findings; `train` makes it first,
    in `OUT-control`, if it is not there.
    """
    base, out = load(base_path, step=step), Path(out)
    config = finetune_config(base, Path(base_path), adaptation, data, data_dir, overrides or {})
    if config.checkpoint.finished == "none":
        raise UserError(
            "what fine-tuning gained is measured at its end, with its weights; give "
            "--checkpoint.finished best"
        )
    key = model_key(config.train.seed)
    start = adapted_model(base, config.model.config, adaptation, key=key)
    request = {"base": str(base_path), "step": step, "adaptation": dataclasses.asdict(adaptation)}
    own = None
    if control == TRAIN:
        control = out.with_name(f"{out.name}-control")
        own = _options_of_control(control, config, overrides or {})
    if control is not None:
        check_control(Path(control), config, own)
        request["control"] = str(control)

    def begin() -> None:
        rundir.create(out)
        with rundir.writing(out, resumable=False):
            write_whole(out / REQUEST, to_json(request, 1) + "\n")

    hosts.on_rank0(begin)
    teacher = config.distill.teacher
    try:
        if own is not None and control is not None and teacher is not None:
            reporter = reporter or SilentReporter()
            reporter.note(f"first the control: {teacher} trained on, in {control}")
            finetune(
                teacher,
                control,
                adaptation=Adaptation(),
                data=data,
                data_dir=data_dir,
                overrides=own,
                reporter=reporter,
                mesh=mesh,
            )
        return train(config, out, reporter=reporter, mesh=mesh, start=start)
    except UserError:
        if hosts.is_rank0() and out.exists() and not (out / rundir.CONFIG).exists():
            rundir.remove_unbegun(out)
        raise


def finetune_config(
    base: Trained,
    base_path: Path,
    adaptation: Adaptation,
    data: str,
    data_dir: str | None,
    overrides: dict[str, Any],
) -> RunConfig:
    """The pretrained run's configuration with other data, the adaptation, and what was asked."""
    lora = base.config.model.config.lora
    if adaptation.method == "lora" and lora not in ("none", adaptation.adapter):
        raise UserError(
            f"{base_path} has adapters already ('{lora}'); give --adapter '{lora}' to train those "
            "further, or merge them first with 'qkvflow export --merge'"
        )
    tokenizer = base.config.data.tokenizer
    if data.startswith("source:"):
        tokenizer = "source"
    elif tokenizer != "byte":
        # The alphabet or vocabulary is that of the first corpus, not of the new one.
        tokenizer = str(base_path / rundir.TOKENIZER)
    return make_config(
        base.config.to_dict(),
        {"model": model_changes(base, adaptation)},
        {"data": {"spec": data, "dir": data_dir, "tokenizer": tokenizer}},
        {"distill": dataclasses.asdict(DistillConfig())},
        {"track": {"label": f"{base.config.model.name} ({adaptation.method})", "group": None}},
        {
            "train": {
                "trainable": METHODS[adaptation.method],
                "start": weights_hash(base.model),
                "target_loss": None,
            }
        },
        overrides,
    )


def _options_of_control(
    control: Path, config: RunConfig, overrides: dict[str, Any]
) -> dict[str, Any] | None:
    """What the teacher is fine-tuned with: as much as this run, and what was asked of it. None if
    that has been done."""
    if (rundir.read_record(control) or {}).get("status") == "finished":
        return None
    as_much = {"steps": config.train.steps, "batch_size": config.train.batch_size}
    others = {name: each for name, each in overrides.items() if name != "distill"}
    return {**others, "train": {**overrides.get("train", {}), **as_much}}


def check_control(control: Path, config: RunConfig, own: dict[str, Any] | None = None) -> None:
    """Refuse a control that is not the teacher, fine-tuned on the same text for as many tokens.

    `own` are the options of one that is still to be made.
    """
    if (teacher := config.distill.teacher) is None:
        raise UserError("--control is the teacher's own fine-tuned run; give --teacher too")
    base = load(teacher)
    if own is None:
        other = make_config(rundir.read_run_config(control))
    else:
        told = config.data.spec, config.data.dir
        other = finetune_config(base, Path(teacher), Adaptation(), *told, own)
    found, expected = (
        (start, each.data.spec, each.tokens_per_step * each.train.steps)
        for start, each in ((other.train.start, other), (weights_hash(base.model), config))
    )
    for what, want, have in zip(("first weights", "text", "tokens"), expected, found, strict=True):
        if want != have:
            raise UserError(
                f"--control {control} has other {what} than this run and its teacher; make it with "
                f"'qkvflow finetune {teacher}' and the same options"
            )


def read_findings(directory: Path) -> dict[str, Any]:
    return json.loads((directory / FINDINGS).read_text("utf-8"))


def summary(findings: dict[str, Any]) -> str:
    """What was gained and lost, in lines for a person."""
    new, first = findings["new_data"], findings["first_data"]
    steps, parameters = findings["num_steps"], findings["parameters"]
    lines = [
        f"{findings['method']}: {parameters['trained']:,} of {parameters['total']:,} parameters "
        f"trained, {steps['before']} -> {steps['after']} depth steps",
        f"  new data: {_loss(new['tuned'])} nats/token; frozen {_loss(new['frozen'])}, and "
        f"{_loss(new['frozen_at_this_depth'])} at this depth ({new['spec']})",
    ]
    if first is not None:
        lines.append(
            f"first data: {_loss(first['before'])} -> {_loss(first['after'])} nats/token, "
            f"forgetting {_loss(first['forgetting'], '+.4f')} ({first['spec']})"
        )
    if (taught := findings.get("distillation")) is not None:
        lines.append(
            f"   teacher: {_shown(taught['teacher_loss'])} nats/token on the new data, trained "
            f"equally long {_shown(taught['teacher_trained'])}; this model "
            f"{_shown(taught['before'])} -> {_shown(taught['after'])}"
        )
    return "\n".join(lines)


def _loss(nats: float | None, form: str = ".4f") -> str:
    """Files of findings say null where a loss is not finite."""
    return "not finite" if nats is None else f"{nats:{form}}"


def _shown(nats: float | None) -> str:
    return "not known" if nats is None else f"{nats:.4f}"
