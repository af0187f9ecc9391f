"""Options of the verbs that take a whole configuration: `--section.field VALUE` for every field.

They are made from the dataclasses, which import no JAX, so that `--help` answers at once.
"""

import argparse
import dataclasses
from typing import Any

from qkvflow.runs.config import SECTIONS
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.options import described

SHORT = {
    "--model": ("model.name", "NAME", "a model of the zoo (see `qkvflow models`)"),
    "--size": ("model.size", "SIZE", "small, medium or large"),
    "--data": ("data.spec", "SPEC", "the corpus: stdlib, file:PATH, hf:NAME, source:markov, ..."),
    "--data-dir": ("data.dir", "DIR", "a local copy of an hf: dataset"),
    "--tokenizer": ("data.tokenizer", "NAME", "byte, char, bpe:N or PATH/tokenizer.json"),
    "--steps": ("train.steps", "N", "optimiser steps"),
    "--tokens": ("train.tokens", "N", "training tokens, instead of steps"),
    "--batch-size": ("train.batch_size", "N", "windows of one step"),
    "--lr": ("optim.lr", "X", "peak learning rate"),
    "--seed": ("train.seed", "S", "initial weights, batches and dropout"),
    "--target-loss": ("train.target_loss", "X", "stop at this validation loss"),
    "--track": ("track.name", "NAME", "where else metrics go: tensorboard, wandb, ..."),
}
"""Short names for the options everybody uses."""


def add_config_options(parser: argparse.ArgumentParser, short: dict[str, Any] = SHORT) -> None:
    """Every field of the configuration as an option; what was given is collected in `overrides`."""
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
    group = parser.add_argument_group("options")
    for option, (key, metavar, text) in short.items():
        group.add_argument(option, metavar=metavar, help=text, **_collect(key))
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
        key = self.const
        namespace.overrides = [each for each in namespace.overrides if each[0] != key]
        namespace.overrides.append((key, values))


def _collect(key: str) -> dict[str, Any]:
    return {"action": _Collect, "const": key, "dest": "overrides", "default": argparse.SUPPRESS}
