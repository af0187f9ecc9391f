"""The parser of a verb: examples first, daily options in `--help`, and errors that help on."""

import argparse
import difflib
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from qkvflow.errors import one_line

_MEANT = {
    "block-size": "--context",
    "cuda": "JAX_PLATFORMS=cuda, in the environment",
    "device": "JAX_PLATFORMS=cpu or cuda, in the environment",
    "epochs": "--tokens",
    "hidden-size": "--d-model",
    "max-iters": "--steps",
    "max-new-tokens": "--tokens",
    "n-embd": "--d-model",
    "n-head": "--heads",
    "n-layer": "--layers",
    "output": "--out",
    "output-dir": "--out",
}
"""What other programs call things, and their names here."""

_RARE = ("configuration: ", "devices and hosts", "plugins")
"""How titles of groups begin that `--help` leaves to `--help-all`, where there is one."""


class Parser(argparse.ArgumentParser):
    """Errors are one line on stderr and exit code 2; misspelt options name the nearest."""

    whole = False
    """Whether help lists every option."""

    def error(self, message: str) -> NoReturn:
        start = "unrecognized arguments: "
        if message.startswith(start):
            option = message.removeprefix(start).partition(" ")[0].partition("=")[0]
            near = " or ".join(nearest(option, self._option_string_actions))
            list_all = next(each for each in ("--help-all", "--help") if self.takes(each))
            hint = f"did you mean {near}?" if near else f"{self.prog} {list_all} lists them"
            what = "unknown option" if option.startswith("-") else "a word too many:"
            message = f"{what} '{one_line(option, 80)}'; {hint}"
        if message.endswith("expected one argument"):
            option = message.removeprefix("argument ").partition(":")[0].rpartition("/")[2]
            message += f"; one that begins with - is written {option}=-..."
        print(f"qkvflow: {one_line(message)}", file=sys.stderr)
        sys.exit(2)

    def takes(self, option: str) -> bool:
        """Whether this verb has the option."""
        return option in self._option_string_actions

    def format_help(self) -> str:
        every = self._action_groups
        if self.takes("--help-all") and not self.whole:
            self._action_groups = [g for g in every if not str(g.title).startswith(_RARE)]
        try:
            return super().format_help()
        finally:
            self._action_groups = every


class HelpAll(argparse.Action):
    """Prints all options."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        parser.whole = True
        parser.print_help()
        parser.exit()


def nearest(option: str, known: Iterable[str]) -> list[str]:
    """Options that may have been meant: by what comes after the section, or by the whole name."""
    word, known = _word(option), sorted(known)
    if (meant := _MEANT.get(word)) is not None and (meant in known or "--" not in meant):
        return [meant]
    by_word: dict[str, list[str]] = {}
    for each in known:
        by_word.setdefault(_word(each), []).append(each)
    if word in by_word:
        return by_word[word]
    close = difflib.get_close_matches(option, known, n=2, cutoff=0.75)
    for each in difflib.get_close_matches(word, by_word, n=2, cutoff=0.7):
        close += by_word[each]
    return list(dict.fromkeys(close))[:3]


def _word(option: str) -> str:
    return option.lower().lstrip("-").rpartition(".")[2].replace("_", "-")
