"""Memory that is freed goes back to the system: settings of glibc's allocator, where it is used.

By default every thread that allocates may get an arena of its own, none of which gives back what
other arenas could use, and the size from which allocations are mappings of their own grows as the
program runs. A process of many threads (JAX, TensorStore) then holds half as much again as it
uses, and more with every hour. Elsewhere (macOS, musl) nothing is done.
"""

import ctypes
from functools import cache
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Names of settings in glibc's malloc.h."""


def configure_malloc() -> None:
    """Two arenas, and thresholds that stay where they are; for the start of a process.

    The workspace of a matrix product is below both, or it would be mapped anew for each: with
    256 kB a training step was seen to take a tenth longer.
    """
    if (libc := _glibc()) is not None:
        libc.mallopt(_ARENA_MAX, 2)
        libc.mallopt(_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_TRIM_THRESHOLD, 8 << 20)


def trim_malloc() -> None:
    """All that is free, now; takes milliseconds."""
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


@cache
def _glibc() -> Any:
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018 - tells glibc from others
    except (OSError, TypeError, AttributeError):
        return None
    return libc
