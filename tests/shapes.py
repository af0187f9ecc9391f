"""The check of shapes and types at every call: beartype, once per signature.

A function inside another is decorated whenever the outer one is called, and beartype writes and
compiles code for it each time. What jaxtyping gives it are empty functions that differ in their
signatures alone, so what was made for one serves every equal one.
"""

from collections.abc import Callable
from typing import Any

import beartype

_MADE: dict[Any, Any] = {}


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = (
        function.__module__,
        function.__qualname__,
        function.__code__,
        tuple(function.__annotations__.items()),
        function.__defaults__,
        tuple((function.__kwdefaults__ or {}).items()),
    )
    try:
        known = signature in _MADE
    except TypeError:  # A default or an annotation that cannot be hashed.
        return beartype.beartype(function)
    if not known:
        _MADE[signature] = beartype.beartype(function)
    return _MADE[signature]
