"""Mistakes a user can make and mend: one line that says what was wrong and what to do.

The command line prints the line and exits with code 2; from Python it is a `ValueError`.
"""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something the user asked for cannot be done; the message says what to do instead."""


class ResourceError(UserError):
    """Something is in the way that is not in the request: a full disk, a directory in use. The same
    command goes on when it is gone."""


class OutOfMemory(ResourceError):
    """More memory is needed than there is."""


class Note(UserWarning):
    """Something to know of a result that was given all the same; the command line prints it."""


class UnknownName(UserError):
    """A name that is not in a set of names; `what` says which, without the hint."""

    def __init__(self, what: str, hint: str) -> None:
        UserError.__init__(self, f"{what}; {hint}")
        self.what = what


def one_line(text: object, most: int = 600) -> str:
    """What is echoed, on one line and not longer than that."""
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(str(text).split()))
    return line if len(line) <= most else f"{line[: most - 3]}..."


def out_of_memory(error: BaseException) -> OutOfMemory | None:
    """What to say if it was that: the words are those of NumPy, and of XLA on its devices."""
    if isinstance(error, OutOfMemory):
        return error
    said = str(error)
    words = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory", "Unable to allocate")
    if not isinstance(error, MemoryError) and not any(word in said for word in words):
        return None
    said = said.replace("RESOURCE_EXHAUSTED:", "").split("\n")[0]
    return OutOfMemory(
        f"out of memory ({one_line(said, 160) or 'no more is granted'}); use a smaller batch, "
        "context or model, or --model.remat"
    )


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """The error for a name that is not in a set of names: it offers the nearest ones."""
    known, name = sorted(known), one_line(name, 80)
    nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"known: {', '.join(known)}"
    return UnknownName(f"unknown {kind} '{name}'", hint)
