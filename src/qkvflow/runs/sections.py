"""The sections of a run's configuration: small dataclasses whose fields say what they mean."""

import dataclasses
from types import NoneType
from typing import Any, get_args

from qkvflow.errors import UserError, unknown
from qkvflow.runs.depths import parse_depths, parse_jitter, parse_levels, parse_recurrence
from qkvflow.zoo import registry
from qkvflow.zoo.options import option

SCHEDULES = ("cosine", "linear", "constant", "wsd")
TRAINABLE = ("all", "adapters", "gates")
SAMPLES = ("evaluations", "last", "none")
FINISHED = ("all", "best", "none")
PRETRAINED = "pretrained"
"""The corpus of a model that was imported: nobody here has it."""


@dataclasses.dataclass(frozen=True)
class DataConfig:
    spec: str = option(
        "stdlib",
        "The corpus: stdlib, file:PATH, hf:NAME[:CONFIG], source:p-hop, ... (docs/data.md).",
    )
    dir: str | None = option(None, "A local copy of a Hugging Face dataset.")
    tokenizer: str = option(
        "byte",
        "The tokenizer: the path of a tokenizer.json, or NAME[:ARGUMENT] such as bpe:4096, of",
        registry.TOKENIZERS,
    )
    seed: int = option(
        0, "Seed of synthetic sources whose specification gives none (not of the batches)."
    )

    def __post_init__(self) -> None:
        _check(self, "data", positive=(), at_least_zero=("seed",))


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    steps: int = option(1000, "Optimiser steps.")
    tokens: int | None = option(
        None,
        "A budget in training tokens instead: steps are then tokens / (batch_size x context), up.",
    )
    batch_size: int = option(16, "Windows of one optimiser step, all accumulation steps together.")
    grad_accum: int = option(
        1, "Parts a batch is computed in, one after another: less memory, the same gradient."
    )
    seed: int = option(
        0, "Initial weights, batches and dropout. The same seed: the same batches for every model."
    )
    eval_every: int = option(
        250, "Steps between evaluations on the validation split (and always after the last)."
    )
    eval_tokens: int | None = option(
        65536,
        "Validation tokens of an evaluation during training, in windows spread evenly; none: "
        "all. The losses in the final record are always of whole splits.",
    )
    log_every: int = option(
        10, "Steps between lines of training loss (the mean since the line before)."
    )
    target_loss: float | None = option(
        None, "Stop at the first evaluation whose validation loss (nats per token) is at most this."
    )
    steps_per_dispatch: int | None = option(
        None,
        "Steps run as one program call; none: as many as take about two seconds. No effect on "
        "results.",
    )
    max_skipped: int = option(
        10,
        "Updates in a row that may be skipped for a non-finite loss or gradient before stopping.",
    )
    depth_jitter: str = option(
        "none",
        "A random depth grid for every step: offset (a first step of random length, as in Tong "
        "et al.'s code), a range of numbers of steps such as 4-8 or 3,6,12, or both: "
        "offset+4-8.",
    )
    recurrence: str = option(
        "fixed",
        "Loops of the core in a step: fixed (num_steps), a range such as 4-32, or "
        "lognormal-poisson about num_steps (Geiping et al. 2025); with backprop_steps. +ramp:0.5 "
        "behind any of them: they grow from one to all over that share of the run.",
    )
    backprop_steps: int | None = option(
        None, "Gradients through the last so many steps of the core alone; none: through all."
    )
    trainable: str = option(
        "all", "Which arrays are trained: all, adapters, or gates (time features, gates and norms)."
    )
    start: str | None = option(
        None, "Set by `finetune`: the sha256 of the weights the run began from; none: fresh ones."
    )
    consistency: float = option(
        0.0, "Weight of the penalty on the distance between predictions at N and at 2N depth steps."
    )
    shortcut: float = option(
        0.0,
        "Weight of LoopFormer's shortcut consistency: a second pass of fewer steps of random "
        "lengths, whose numbers train.depth_jitter gives, is drawn to that of num_steps.",
    )
    exit_entropy: float = option(
        0.1, "Weight of the entropy of the exit distribution, for models with exit_gate."
    )
    eval_test: bool = option(True, "Evaluate on the test split too, once, at the end.")
    samples: str = option(
        "evaluations",
        "Generated text in samples.txt: at evaluations, last (of the selected weights) or none.",
    )
    eval_depths: str = option(
        "none",
        "Other depths the finished model is evaluated at, for the record: multiples of its "
        "number of steps such as 0.5,2, and schemes such as adaptive.",
    )
    eval_levels: str = option(
        "none",
        "Other difficulties of a probe (hops, numbers, depth or pairs) that the finished model "
        "answers, for the record, such as 1,2,8.",
    )

    def __post_init__(self) -> None:
        positive = ("steps", "tokens", "batch_size", "grad_accum", "eval_every", "eval_tokens")
        positive += ("log_every", "steps_per_dispatch", "max_skipped", "backprop_steps")
        _check(
            self,
            "train",
            positive=positive,
            at_least_zero=("seed", "consistency", "shortcut", "exit_entropy"),
        )
        parse_jitter(self.depth_jitter)
        parse_depths(self.eval_depths)
        parse_levels(self.eval_levels)
        parse_recurrence(self.recurrence)
        if self.trainable not in TRAINABLE:
            raise unknown("train.trainable", self.trainable, TRAINABLE)
        if self.samples not in SAMPLES:
            raise unknown("train.samples", self.samples, SAMPLES)
        _below(self, "train", ("seed", "batch_size", "steps"))
        if self.batch_size % self.grad_accum:
            raise UserError(
                f"train.batch_size {self.batch_size} is not divisible by train.grad_accum "
                f"{self.grad_accum}; change one of them"
            )


@dataclasses.dataclass(frozen=True)
class OptimConfig:
    name: str = option(
        "adamw",
        "The optimiser (muon: on the blocks' matrices, AdamW on the rest)",
        registry.OPTIMISERS,
    )
    lr: float = option(1e-3, "Peak learning rate.")
    beta1: float = option(0.9, "Decay of the gradient's mean (momentum, for sgd and muon).")
    beta2: float = option(0.99, "Decay of the gradient's square.")
    eps: float = option(1e-8, "Added to the root of the gradient's square.")
    weight_decay: float = option(
        0.1, "Decoupled weight decay, on matrices only: not on biases, norms or vectors."
    )
    max_grad_norm: float = option(
        1.0, "Gradients are clipped to this global norm; 0 for no clipping."
    )
    schedule: str = option(
        "cosine",
        "After the warm-up: cosine, linear, constant, or wsd (constant, then linear to the end).",
    )
    warmup: int = option(100, "Steps of linear warm-up.")
    min_lr_ratio: float = option(
        0.1, "Last learning rate over the peak, for cosine, linear and wsd."
    )
    decay_fraction: float = option(0.2, "Last fraction of the steps, in which wsd decays.")

    def __post_init__(self) -> None:
        _check(
            self,
            "optim",
            positive=("lr", "eps"),
            at_least_zero=("weight_decay", "max_grad_norm", "warmup", "min_lr_ratio"),
        )
        _below(self, "optim", ("warmup",))
        if self.lr > 3e38:
            raise UserError(f"optim.lr must be a rate that float32 can hold, not {self.lr}")
        registry.OPTIMISERS.check(self.name)
        if self.schedule not in SCHEDULES:
            raise unknown("schedule", self.schedule, SCHEDULES)
        for name in ("beta1", "beta2", "decay_fraction"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UserError(f"optim.{name} must be in [0, 1), not {getattr(self, name)}")


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    every: int = option(500, "Steps between checkpoints (and always after the last).")
    keep: int = option(2, "Latest checkpoints kept.")
    best: bool = option(
        True, "Keep the checkpoint of the best validation loss too, and report its losses."
    )
    finished: str = option(
        "all", "What a finished run keeps of them: all, best (the selected one alone) or none."
    )

    def __post_init__(self) -> None:
        _check(self, "checkpoint", positive=("every", "keep"), at_least_zero=())
        if self.finished not in FINISHED:
            raise unknown("checkpoint.finished", self.finished, FINISHED)


@dataclasses.dataclass(frozen=True)
class TrackConfig:
    name: str = option("none", "Where else metrics go, besides metrics.jsonl", registry.TRACKERS)
    project: str = option("qkvflow", "Project of wandb and trackio.")
    label: str | None = option(None, "How records call this run; none: the model's name.")
    group: str | None = option(
        None, "What runs belong together under, in wandb; a comparison sets it."
    )

    def __post_init__(self) -> None:
        _check(self, "track", positive=(), at_least_zero=())
        registry.TRACKERS.check(self.name)


@dataclasses.dataclass(frozen=True)
class DistillConfig:
    teacher: str | None = option(
        None, "A run directory or export whose predictions are learnt; none: the text alone."
    )
    sha256: str | None = option(None, "Set when a run begins: the sha256 of the teacher's weights.")
    weight: float = option(
        0.5, "Of the teacher's predictions, from 0 to 1; the rest is that of the text itself."
    )
    temperature: float = option(
        1.0, "Logits of both are divided by it before they are compared (Hinton et al. 2015)."
    )

    def __post_init__(self) -> None:
        if not 0.0 <= self.weight <= 1.0:
            raise UserError(f"distill.weight must be from 0 to 1, not {self.weight}")
        if not self.temperature > 0.0:
            raise UserError(f"distill.temperature must be positive, not {self.temperature}")


SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "train": TrainConfig,
    "optim": OptimConfig,
    "checkpoint": CheckpointConfig,
    "track": TrackConfig,
    "distill": DistillConfig,
}


def _below(section: Any, name: str, fields: tuple[str, ...]) -> None:
    """Refuse what the compiled program has no room for: its whole numbers have 32 bits."""
    for field in fields:
        if getattr(section, field) >= 1 << 31:
            raise UserError(f"{name}.{field} must be below 2^31, not {getattr(section, field)}")


def _check(
    section: Any, name: str, *, positive: tuple[str, ...], at_least_zero: tuple[str, ...]
) -> None:
    """Types and signs, refused where a section is made."""
    for each in dataclasses.fields(section):
        value = typed(f"{name}.{each.name}", each.type, getattr(section, each.name))
        object.__setattr__(section, each.name, value)
        if value is None:
            continue
        if each.name in positive and not value > 0:
            raise UserError(f"{name}.{each.name} must be positive, not {value}")
        if each.name in at_least_zero and not value >= 0:
            raise UserError(f"{name}.{each.name} must not be negative, not {value}")


def typed(name: str, annotation: Any, value: Any) -> Any:
    """The value in the type of its field, or an error that names both.

    YAML reads `1e-3` as text and `1e6` is a fine number of steps, so numbers may be either.
    """
    kinds = get_args(annotation) or (annotation,)
    if NoneType in kinds and (value is None or value in ("none", "None", "null")):
        return None
    kind = kinds[0]
    if kind is str and value is None:
        return "none"  # YAML's null, in a field that is a name
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        if kind is float and not abs(value) < float("inf"):
            raise UserError(f"{name} must be a finite number, not {value}")
        return value
    if kind in (int, float) and isinstance(value, int | float | str):
        try:
            number = float(value) if not isinstance(value, bool) else None
        except (ValueError, OverflowError):
            number = None
        if number is not None and abs(number) < float("inf"):
            if kind is float:
                return number
            if number == int(number):
                return int(number)
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
    raise UserError(f"{name} must be {words.get(kind.__name__, kind.__name__)}, not {value!r}")
