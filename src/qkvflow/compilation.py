"""Compiled programs kept: between processes in JAX's persistent cache, within one by `shared`."""

import glob
import os
import re
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

from qkvflow.paths import cache_dir


def shared(make: Callable[..., Any]) -> Callable[..., Any]:
    """Of a function that makes a program: once for equal arguments, of which the last few are
    remembered. An argument without a hash, such as a NumPy array in a model, is equal to none."""
    remembered = lru_cache(maxsize=8)(make)

    @wraps(make)
    def made(*args: Any) -> Any:
        try:
            hash(args)
        except TypeError:
            return make(*args)
        return remembered(*args)

    return made


def use_compilation_cache() -> None:
    """Keep compiled programs in the user's cache directory, unless JAX is told otherwise."""
    import jax

    if "JAX_COMPILATION_CACHE_DIR" in os.environ or jax.config.values["jax_compilation_cache_dir"]:
        return
    jax.config.update("jax_compilation_cache_dir", str(cache_dir("xla")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def mend_compilation_cache(message: str) -> str | None:
    """If a warning is JAX's of its cache: what to say instead, after deleting that program there.

    JAX never replaces an entry that it cannot read, such as half of one that a killed process or
    a full disk left, and would warn of it at every start. A directory that was chosen for JAX
    itself may hold programs of others, and is left alone.
    """
    named = re.search(r"persistent compilation cache entry for '([^'/]+)'", message)
    if named is None:
        return None
    import jax

    own, used = cache_dir("xla"), jax.config.values["jax_compilation_cache_dir"]
    if str(own) != used:
        return f"a compiled program in {used} cannot be read or written; it was compiled anew"
    for path in own.glob(f"{glob.escape(named[1])}*-cache"):
        path.unlink(missing_ok=True)
    return f"a compiled program in {own} could not be read or written; it is compiled anew"
