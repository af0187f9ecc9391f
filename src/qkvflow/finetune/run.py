"""Fine-tuning as a run: an ordinary run directory that began from pretrained weights.

Besides what every run leaves there is `finetune.json`, what it gained on the new data and lost on
the first, and with `lora` the adapters alone, `adapter.safetensors`. They are made when a run ends,
also one that was interrupted and resumed: `.finetune.json` remembers what was asked.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qkvflow.errors import UserError
from qkvflow.files import to_json, write_whole
from qkvflow.finetune.adaptation import METHODS, Adaptation, adapted_model, model_changes
from qkvflow.finetune.adapters import FILE, save_adapter, weights_hash
from qkvflow.lm import LanguageModel
from qkvflow.parallel import hosts
from qkvflow.training import rundir
from qkvflow.training.config import RunConfig, make_config
from qkvflow.training.evaluate import evaluate
from qkvflow.training.export import load
from qkvflow.training.loop import Sample
from qkvflow.training.reporter import Reporter, Silent
from qkvflow.training.run import Trained, load_split, train
from qkvflow.training.selection import count_trained
from qkvflow.training.step import model_key, split_model

REPORT, PLAN = "finetune.json", ".finetune.json"


def finetune(
    base_path: str | Path,
    out: str | Path,
    *,
    adaptation: Adaptation,
    data: str,
    data_dir: str | None = None,
    overrides: dict[str, Any] | None = None,
    step: int | str = "best",
    sample: Sample | None = None,
    reporter: Reporter | None = None,
    label: str | None = None,
    mesh: str | None = None,
) -> dict[str, Any]:
    """Continue a pretrained run (or export) on other data; returns the content of `record.json`.

    `overrides` are sections of the configuration, on top of the pretrained run's own; `mesh` says
    how devices are used, as in `train`.
    """
    base, out = load(base_path, step=step), Path(out)
    config = finetune_config(base, Path(base_path), adaptation, data, data_dir, overrides or {})
    key = model_key(config.train.seed)
    start = adapted_model(base, config.model.config, adaptation, key=key)
    plan = {"base": str(base_path), "step": step, "adaptation": dataclasses.asdict(adaptation)}

    def begin() -> None:
        rundir.create(out)
        with rundir.writing(out, resumable=False):
            write_whole(out / PLAN, to_json(plan, 1) + "\n")

    hosts.first(begin)
    record = train(
        config,
        out,
        sample=sample,
        reporter=reporter,
        label=label or f"{base.config.model.name} ({adaptation.method})",
        mesh=mesh,
        start=start,
    )
    complete(out, reporter)
    return record


def complete(directory: str | Path, reporter: Reporter | None = None) -> None:
    """Write what belongs to a fine-tuned run that has ended; nothing for any other run."""
    directory, note = Path(directory), (reporter or Silent()).note
    if not (directory / PLAN).exists() or (directory / REPORT).exists():
        return
    plan = json.loads((directory / PLAN).read_text("utf-8"))
    tuned = load(directory)
    try:
        base = load(plan["base"], step=plan["step"])
    except UserError as error:
        base = error
    hosts.first(lambda: _write(directory, plan, tuned, base, note))


def _write(
    directory: Path,
    plan: dict[str, Any],
    tuned: Trained,
    base: Trained | UserError,
    note: Callable[[str], None],
) -> None:
    adaptation, base_hash = Adaptation(**plan["adaptation"]), tuned.config.train.start
    if adaptation.method == "lora" and base_hash is not None:
        with rundir.writing(directory):
            save_adapter(tuned.model, adaptation, base_hash, directory / FILE)
    if isinstance(base, UserError):
        note(f"no {REPORT}: the pretrained run cannot be read ({base})")
        return
    if weights_hash(base.model) != base_hash:
        note(f"no {REPORT}: {plan['base']} holds other weights than this run began from")
        return
    report = _report(base, plan["base"], tuned, adaptation, note)
    with rundir.writing(directory):
        write_whole(directory / REPORT, to_json(report, 1) + "\n")


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
        {
            "train": {
                "only": METHODS[adaptation.method],
                "start": weights_hash(base.model),
                "target_loss": None,
            }
        },
        overrides,
    )


def _report(
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
    report = {
        "base": base_path,
        "base_sha256": tuned.config.train.start,
        "base_step": base.step,
        **dataclasses.asdict(adaptation),
        "num_steps": {"before": base.model.num_steps, "after": tuned.model.num_steps},
        "scheme": {
            "before": base.config.model.config.scheme,
            "after": tuned.config.model.config.scheme,
        },
        "parameters": {
            "total": count_trained(split_model(tuned.model)[0], "all"),
            "trained": count_trained(split_model(tuned.model)[0], tuned.config.train.only),
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
        return report
    before, now = nats(base.model, first), nats(tuned.model, first)
    report["first_data"] = {
        "spec": base.config.data.spec,
        "before": before,
        "after": now,
        "forgetting": now - before,
    }
    return report


def read_report(directory: Path) -> dict[str, Any]:
    return json.loads((directory / REPORT).read_text("utf-8"))


def summary(report: dict[str, Any]) -> str:
    """What was gained and lost, in lines for a person."""
    new, first = report["new_data"], report["first_data"]
    steps, parameters = report["num_steps"], report["parameters"]
    lines = [
        f"{report['method']}: {parameters['trained']:,} of {parameters['total']:,} parameters "
        f"trained, {steps['before']} -> {steps['after']} depth steps",
        f"  new data: {new['tuned']:.4f} nats/token; frozen {new['frozen']:.4f}, and "
        f"{new['frozen_at_this_depth']:.4f} at this depth ({new['spec']})",
    ]
    if first is not None:
        lines.append(
            f"first data: {first['before']:.4f} -> {first['after']:.4f} nats/token, forgetting "
            f"{first['forgetting']:+.4f} ({first['spec']})"
        )
    return "\n".join(lines)
