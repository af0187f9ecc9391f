"""Options of the verbs that take a whole configuration: `--section.field VALUE` for every field.

The fields and their descriptions are read from the source of the dataclasses, not by importing
them, so that `--help` answers at once.
"""

import argparse
import ast
import importlib.util
from pathlib import Path
from typing import Any

_SECTIONS = {
    "model": ("zoo", "ModelConfig"),
    "data": ("runs", "DataConfig"),
    "train": ("runs", "TrainConfig"),
    "optim": ("runs", "OptimConfig"),
    "checkpoint": ("runs", "CheckpointConfig"),
    "track": ("runs", "TrackConfig"),
}

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
    "--track": ("track.name", "NAME", "tensorboard, wandb or trackio"),
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
    for section, (room, name) in _SECTIONS.items():
        group = parser.add_argument_group(f"configuration: {section}")
        if section == "model":
            for key in ("name", "size"):
                option = {"name": "--model", "size": "--size"}[key]
                group.add_argument(
                    f"--model.{key}", metavar="X", help=f"as {option}", **_collect(f"model.{key}")
                )
        for field, default, text in documented_fields(room, name):
            help_text = f"{text} (default {default})".replace("%", "%%")
            key = f"{section}.{field}"
            group.add_argument(f"--{key}", metavar="X", help=help_text, **_collect(key))


class _Collect(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        key = self.const
        namespace.overrides = [each for each in namespace.overrides if each[0] != key]
        namespace.overrides.append((key, values))


def _collect(key: str) -> dict[str, Any]:
    return {"action": _Collect, "const": key, "dest": "overrides", "default": argparse.SUPPRESS}


def documented_fields(room: str, name: str) -> list[tuple[str, str, str]]:
    """(field, default, description) of a dataclass in the room's `config.py`, from its source."""
    spec = importlib.util.find_spec(f"qkvflow.{room}")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    source = Path(spec.submodule_search_locations[0]) / "config.py"
    for node in ast.parse(source.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return list(_fields(node))
    raise LookupError(f"no {name} in {source}")


def _fields(node: ast.ClassDef) -> Any:
    for statement, after in zip(node.body, [*node.body[1:], None], strict=True):
        match statement, after:
            case (
                ast.AnnAssign(target=ast.Name(id=field), value=ast.expr() as value),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                default = ast.unparse(value).strip("'").replace("None", "none")
                yield field, default, " ".join(text.split())
