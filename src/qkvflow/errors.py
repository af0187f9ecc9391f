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


class UnknownName(UserError):
    """A name that is not in a set of names; `what` says which, without the hint."""

    def __init__(self, what: str, hint: str) -> None:
        UserError.__init__(self, f"{what}; {hint}")
        self.what = what


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """The error for a name that is not in a set of names: it offers the nearest ones."""
    known = sorted(known)
    nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"known: {', '.join(known)}"
    return UnknownName(f"unknown {kind} '{name}'", hint)
