"""Whether to use fast forms or their plain twins, decided while a program is traced."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_plain: ContextVar[bool] = ContextVar("plain", default=False)


@contextmanager
def forward_mode() -> Iterator[None]:
    """Plain twins inside: for functions that are differentiated in forward mode.

    Enter it inside the function that is differentiated or compiled, not around the call: programs
    that were traced before are not traced again.
    """
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


def plain() -> bool:
    return _plain.get()
