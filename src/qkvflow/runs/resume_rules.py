"""What may change between a run's start and its resumption, and why not the rest."""

from typing import Any

from qkvflow.errors import UserError
from qkvflow.runs.config import RunConfig, make_config
from qkvflow.runs.depths import parse_recurrence

# These decide when something is looked at or kept, never what is computed.
FREE = {
    "train": {
        "eval_every",
        "eval_tokens",
        "log_every",
        "target_loss",
        "steps_per_dispatch",
        "max_skipped",
        "samples",
        "eval_depths",
        "eval_levels",
        "eval_test",
    },
    "checkpoint": {"every", "keep", "best", "finished"},
    "track": {"name", "project", "label", "group"},
    # Only what is kept in memory and what is computed again.
    "model": {"remat"},
    # The text itself is compared by hash: it may have moved, but not changed.
    "data": {"spec", "dir"},
    # So are the teacher's weights.
    "distill": {"teacher"},
}
WHY = {
    "model": "the weights in the checkpoint are of the old model",
    "data": "the tokens would mean something else",
    "train": "the batches still to come would not be those of this run",
    "distill": "the steps made so far had another objective",
    "optim": "the optimiser's state belongs to the old settings",
}


def check_config(saved: dict[str, Any], wanted: RunConfig, *, step: int, extend: bool) -> list[str]:
    """Refuse changes that are not sound; returns a note for each change that is."""
    notes = []
    saved = make_config(saved).to_dict()  # As it is written today.
    for section, values in wanted.to_dict().items():
        if section == "plugins":
            continue  # `make_config` has refused changed ones.
        for key, value in values.items():
            old = saved.get(section, {}).get(key)
            if old == value or (section, key) == ("train", "tokens"):
                continue
            if (section, key) == ("train", "steps"):
                notes.append(_check_steps(int(old or 0), wanted, step, extend))
            elif key in FREE.get(section, ()):
                notes.append(f"{section}.{key} is {value} from here on, it was {old}")
            else:
                raise UserError(
                    f"{section}.{key} was {old} when this run began and cannot become {value}: "
                    f"{WHY[section]}; start a new run for that"
                )
    return notes


def _check_steps(old: int, wanted: RunConfig, step: int, extend: bool) -> str:
    new, optim = wanted.train.steps, wanted.optim
    if new < step:
        raise UserError(f"this run has made {step} steps already; train.steps cannot be {new}")
    ramp = parse_recurrence(wanted.train.recurrence).ramp > 0
    if optim.schedule == "constant" and not ramp:
        return f"{new} steps instead of {old}; the learning rate is constant, nothing else changes"
    follows, changes = f"{optim.schedule} schedule", "the learning rate"
    if optim.schedule == "constant":
        follows, changes = "ramp of recurrence", "the number of loops"
    if not extend:
        raise UserError(
            f"train.steps was {old}: its {follows} has been following that, and {new} steps would "
            f"change {changes} from here on; add --extend if you want it"
        )
    return (
        f"{new} steps instead of {old}: the {follows} is stretched, so the result is not that of a "
        f"run of {new} steps from the start"
    )


def check_data(saved: dict[str, Any], described: dict[str, Any], identity: str) -> None:
    """The same text and the same tokens, wherever they lie now."""
    if saved["sha256"] != described["sha256"]:
        raise UserError(
            f"the text of '{described['spec']}' has changed since this run began (sha256 "
            f"{saved['sha256'][:12]}, now {described['sha256'][:12]}); restore it, or start a "
            "new run"
        )
    if saved["tokenizer_identity"] != identity:
        raise UserError(
            f"tokenizer '{described['tokenizer']}' gives other tokens than when this run began; "
            "restore the tokenizer, or start a new run"
        )


def check_mesh(saved: str | None, now: str) -> list[str]:
    if saved in (now, None):
        return []
    return [f"mesh {now} instead of {saved}: sums may round differently in their last bits"]
