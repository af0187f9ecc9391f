"""From a plan and its corpus to what will be run: shapes, steps, configurations of runs."""

import dataclasses
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jax

from qkvflow.data import EncodedCorpus
from qkvflow.errors import UserError
from qkvflow.experiment.matching import match, measure
from qkvflow.experiment.plan import Plan
from qkvflow.experiment.specs import ModelSpec
from qkvflow.experiment.units import Unit, run_unit
from qkvflow.lm import count_parameters, weights_in_effect
from qkvflow.lm.accounting import block_at_end
from qkvflow.runs.config import RunConfig
from qkvflow.runs.sections import TrainConfig
from qkvflow.training.program import Program, make_program
from qkvflow.zoo import ModelConfig

SHAPE = ("d_model", "mlp_ratio", "d_state", "num_heads", "num_steps", "context")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One model of the comparison, ready to run but for the seed."""

    label: str
    config: RunConfig
    flops_per_step: float
    parameters: int
    block_parameters: int
    flops_per_token: float
    bytes: int
    """Memory that training it is expected to take."""
    matched: str | None
    """What its width was chosen for, in words."""

    @property
    def steps(self) -> int:
        return self.config.train.steps

    def run(self, seed: int, directory: Path, title: str, *, group: str) -> Unit:
        """One run in its directory."""
        config = self.config
        track = dataclasses.replace(
            config.track, label=self.label, group=config.track.group or group
        )
        config = dataclasses.replace(
            config, train=dataclasses.replace(config.train, seed=seed), track=track
        )
        return run_unit(
            directory,
            f"{self.label} {title}",
            config,
            flops_per_step=self.flops_per_step,
            bytes=self.bytes,
        )

    def describe(self) -> dict[str, Any]:
        """What `plan.yaml` says of it under `resolved`."""
        shape = self.config.model.config.to_dict()
        return {
            "parameters": self.parameters,
            "block_parameters": self.block_parameters,
            "flops_per_token": round(self.flops_per_token),
            "steps": self.steps,
            "matched": self.matched,
            "shape": {key: shape[key] for key in SHAPE},
        }


def shapes(plan: Plan, vocab_size: int) -> list[Entry]:
    """Every model of the plan in its final shape, with the steps of a run still to be set."""
    configs = {spec.label: plan.base_config(spec) for spec in plan.models}
    _check_shared(configs)
    final: dict[str, ModelConfig] = {}
    why: dict[str, str | None] = {}

    @cache
    def measured(shape: ModelConfig, kind: str, tokens_per_step: int, train: TrainConfig) -> float:
        """Most models are matched to the same one, which is traced once."""
        return measure(
            shape, kind, vocab_size=vocab_size, tokens_per_step=tokens_per_step, train=train
        )

    def resolve(spec: ModelSpec, waiting: tuple[str, ...]) -> ModelConfig:
        if spec.label in final:
            return final[spec.label]
        if spec.label in waiting:
            raise UserError(f"{' and '.join(waiting)} are matched to each other; name one width")
        config = configs[spec.label]
        wanted = spec.matched_to
        if wanted is None and plan.match is not None and spec.label != plan.reference:
            wanted = (plan.match, plan.reference)
        shape, why[spec.label] = config.model.config, None
        if wanted is not None:
            kind, label = wanted
            other = next(each for each in plan.models if each.label == label)
            step = {"tokens_per_step": config.tokens_per_step, "train": config.train}
            target = measured(resolve(other, (*waiting, spec.label)), kind, **step)
            shape = match(shape, kind, target, label=spec.label, vocab_size=vocab_size, **step)
            why[spec.label] = f"{kind} of {label}"
        final[spec.label] = shape
        return shape

    made = []
    for spec in plan.models:
        config = configs[spec.label]
        model = dataclasses.replace(config.model, config=resolve(spec, ()))
        config = dataclasses.replace(config, model=model)
        made.append(entry_of(spec.label, config, vocab_size, why[spec.label]))
    return made


def _check_shared(configs: Mapping[str, RunConfig]) -> None:
    contexts = {label: config.context for label, config in configs.items()}
    if len(set(contexts.values())) > 1:
        each = ", ".join(f"{label} {context}" for label, context in contexts.items())
        raise UserError(f"all models need one context, not {each}; give --model.context")


def entry_of(label: str, config: RunConfig, vocab_size: int, why: str | None = None) -> Entry:
    """A model as it is configured, counted on its shapes."""
    try:
        program = make_program(config, vocab_size)
        per_step, counted = program.flops_per_step, count_parameters(program.model)
    except UserError:
        raise
    except Exception as error:  # Of a plugin: anything can be wrong with it.
        told = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise UserError(f"{label} cannot be built ({told}); correct it") from error
    return Entry(
        label=label,
        config=config,
        flops_per_step=float(per_step),
        parameters=counted.total,
        block_parameters=counted.blocks,
        flops_per_token=per_step / config.tokens_per_step,
        bytes=_bytes(program),
        matched=why,
    )


_PROCESS_BYTES = 700 << 20
"""Of a worker process, its libraries and the corpus."""
_KEPT_PER_TOKEN = 40
"""Numbers that a step keeps for the backward pass, per token, channel and layer; about."""


def _bytes(program: Program) -> int:
    """A rough estimate, before anything is compiled: of workers that would not fit together."""
    shape, tokens = program.config.model.config, program.config.tokens_per_step
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(program.state))
    weights = 4 * weights_in_effect(program.model)
    own = shape.num_steps * len(block_at_end(program.model).branches) // len(shape.mixers)
    layers = shape.prelude + own + shape.coda
    kept = 4 * tokens * (_KEPT_PER_TOKEN * shape.d_model * layers + 2 * program.vocab_size)
    return _PROCESS_BYTES + 2 * held + 2 * weights + kept // program.config.train.grad_accum


def with_steps(
    plan: Plan, entries: list[Entry], seconds_per_step: Mapping[str, float] | None = None
) -> list[Entry]:
    """The entries with the steps their budget pays for.

    A budget of seconds is turned into steps by the time of a step, measured for each model beside
    the others (`speed`), so that every schedule runs to its end and a run can be repeated.
    """
    made = []
    for entry in entries:
        steps = _steps(plan, entry, seconds_per_step)
        config = entry.config
        train = dataclasses.replace(
            config.train, steps=steps, eval_every=max(1, math.ceil(steps / plan.evaluations))
        )
        # A warm-up longer than half the run would leave no run.
        optim = dataclasses.replace(config.optim, warmup=min(config.optim.warmup, steps // 2))
        changed = dataclasses.replace(config, train=train, optim=optim)
        made.append(dataclasses.replace(entry, config=changed))
    return made


def _steps(plan: Plan, entry: Entry, seconds_per_step: Mapping[str, float] | None) -> int:
    kind, amount = plan.budget.kind, plan.budget.amount
    if kind == "steps":
        return int(amount)
    if kind == "tokens":
        return max(1, math.ceil(amount / entry.config.tokens_per_step))
    if kind == "flops":
        if amount < entry.flops_per_step:
            raise UserError(
                f"a step of {entry.label} takes {entry.flops_per_step:.3g} FLOPs, more than the "
                f"budget of {amount:.3g}; raise it"
            )
        return round(amount / entry.flops_per_step)
    assert seconds_per_step is not None
    return max(1, round(amount / seconds_per_step[entry.label]))


def describe(plan: Plan, entries: list[Entry], encoded: EncodedCorpus) -> dict[str, Any]:
    """The part of `plan.yaml` that follows from the rest. Steps that a budget of seconds pays for
    are measured and stand in the records."""
    measured = plan.budget.kind == "seconds"
    models = {entry.label: entry.describe() for entry in entries}
    for each in models.values():
        each["steps"] = None if measured else each["steps"]
    return {
        "data": {
            "sha256": encoded.corpus.sha256,
            "tokenizer": encoded.tokenizer.identity,
            "vocab_size": encoded.tokenizer.vocab_size,
        },
        "models": models,
    }
