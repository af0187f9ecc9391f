"""Options of the verbs that take a whole configuration: `--section.field VALUE` for every field.

They are made from the dataclasses, which import no JAX, so that `--help` answers at once.
"""

import argparse
import dataclasses
import re
from typing import Any

from qkvflow.cli.parser import HelpAll
from qkvflow.runs.sections import SECTIONS
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.options import described

SHORT = {
    "--model": ("model.name", "NAME", "a model of the zoo (see `qkvflow models`)"),
    "--size": ("model.size", "SIZE", "tiny, small (default), medium or large"),
    "--data": ("data.spec", "SPEC", "stdlib (default), file:PATH, hf:NAME, ... (docs/data.md)"),
    "--tokenizer": ("data.tokenizer", "NAME", "byte (default), char, bpe:N or a tokenizer.json"),
    "--d-model": ("model.d_model", "N", "width of the residual stream"),
    "--layers": ("model.num_steps", "N", "steps along depth"),
    "--heads": ("model.num_heads", "N", "attention heads"),
    "--context": ("model.context", "N", "tokens of a sequence"),
    "--steps": ("train.steps", "N", "optimiser steps (default 1000)"),
    "--tokens": ("train.tokens", "N", "training tokens, instead of steps"),
    "--batch-size": ("train.batch_size", "N", "sequences of a step (default 16)"),
    "--lr": ("optim.lr", "X", "peak learning rate (default 0.001)"),
    "--warmup": ("optim.warmup", "N", "steps of warm-up (default 100)"),
    "--seed": ("train.seed", "S", "initial weights, batches and dropout (default 0)"),
    "--track": ("track.name", "NAME", "metrics go to tensorboard, trackio or wandb as well"),
    "--data-dir": ("data.dir", "DIR", "a local copy of an hf: dataset"),
    "--target-loss": ("train.target_loss", "X", "stop at this validation loss"),
}
"""Short names for the options everybody uses."""
KEPT = {
    name: (key, metavar, re.sub(r" \(default[^)]*\)", "", text))
    for name, (key, metavar, text) in SHORT.items()
}
"""The same for verbs in which they are as the run has them."""

ALIASES = {
    "--learning-rate": "--lr",
    "--width": "--d-model",
    "--num-layers": "--layers",
    "--num-heads": "--heads",
    "--context-length": "--context",
    "--seq-len": "--context",
    "--max-steps": "--steps",
    "--warmup-steps": "--warmup",
}
"""Other names people type for them."""

FLAGS = {f"--{name}": ("track.name", name) for name in ("wandb", "tensorboard", "trackio")}


def add_config_options(parser: argparse.ArgumentParser, short: dict[str, Any] = SHORT) -> None:
    """Every field of the configuration as an option; what was given is collected in `overrides`.

    A verb's own options, added before, keep their names.
    """
    parser.set_defaults(overrides=[])
    # Ninety options do not make a usage line.
    positional = " ".join(str(a.metavar) for a in parser._actions if not a.option_strings)
    required = [
        f"{a.option_strings[0]} {a.metavar}"
        for a in parser._actions
        if a.required and a.option_strings
    ]
    words = f"{parser.prog} {positional} {' '.join(required)} [options]"
    parser.usage = " ".join(words.split())
    taken = set(parser._option_string_actions)
    parser.add_argument("--help-all", action=HelpAll, nargs=0, help="every option there is")
    rare = parser.add_argument_group("configuration: short names")
    for option, (key, metavar, text) in short.items():
        group = rare if option in ("--data-dir", "--target-loss") else parser
        group.add_argument(option, metavar=metavar, help=text, **_collect(key))
    for option, meant in ALIASES.items():
        if meant in short and option not in taken:
            collect = _collect(short[meant][0])
            rare.add_argument(option, metavar=short[meant][1], help=f"as {meant}", **collect)
    for option, (key, value) in FLAGS.items():
        if "--track" in short:
            collect = _collect(key, value)
            rare.add_argument(option, nargs=0, help=f"as --track {value}", **collect)
    for section, kind in {"model": ModelConfig, **SECTIONS}.items():
        group = parser.add_argument_group(f"configuration: {section}")
        if section == "model":
            for key in ("name", "size"):
                option = {"name": "--model", "size": "--size"}[key]
                group.add_argument(
                    f"--model.{key}", metavar="X", help=f"as {option}", **_collect(f"model.{key}")
                )
        for field in dataclasses.fields(kind):
            key, text = f"{section}.{field.name}", described(field).replace("%", "%%")
            group.add_argument(f"--{key}", metavar="X", help=text, **_collect(key))


class _Collect(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        key, fixed = self.const
        namespace.overrides = [each for each in namespace.overrides if each[0] != key]
        namespace.overrides.append((key, values if fixed is None else fixed))


def _collect(key: str, fixed: str | None = None) -> dict[str, Any]:
    """Sets a key to the value given, or to a fixed one."""
    const = (key, fixed)
    return {"action": _Collect, "const": const, "dest": "overrides", "default": argparse.SUPPRESS}
