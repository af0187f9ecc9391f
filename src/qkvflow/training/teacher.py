"""The model whose predictions a run learns: found, known by its weights, and fit for it."""

import dataclasses

from qkvflow.data import Tokenizer
from qkvflow.errors import UserError
from qkvflow.lm import LanguageModel
from qkvflow.runs.config import RunConfig
from qkvflow.runs.load import Trained, load
from qkvflow.runs.weights import weights_hash


def with_teacher(config: RunConfig) -> tuple[RunConfig, Trained | None]:
    """The teacher that a configuration names, and the configuration with the hash of its weights;
    a run that has begun goes on with the same ones."""
    distill, train = config.distill, config.train
    if distill.teacher is None:
        return config, None
    drawn = train.depth_jitter != "none" or train.backprop_steps is not None
    if drawn or train.consistency or train.shortcut or config.model.config.exit_gate:
        raise UserError(
            "a teacher goes with none of train.depth_jitter, train.consistency, train.shortcut, "
            "train.backprop_steps and model.exit_gate; leave them out"
        )
    teacher = load(distill.teacher)
    own = weights_hash(teacher.model)
    if distill.sha256 not in (None, own):
        raise UserError(
            f"the teacher {distill.teacher} holds other weights than this run began with; restore "
            "it, or name where it is with --distill.teacher"
        )
    return dataclasses.replace(config, distill=dataclasses.replace(distill, sha256=own)), teacher


def check_teacher(
    teacher: Trained | None, config: RunConfig, tokenizer: Tokenizer
) -> LanguageModel | None:
    """The teacher's model, if it reads what the run reads."""
    if teacher is None:
        return None
    where, model = config.distill.teacher, teacher.model
    if teacher.tokenizer.identity != tokenizer.identity:
        raise UserError(f"the teacher {where} has another tokenizer; give one with the same")
    if model.positions is not None and model.context < config.context:
        raise UserError(
            f"the teacher {where} has {model.context} learned positions, fewer than the context of "
            f"{config.context}; give a shorter --model.context"
        )
    return model
