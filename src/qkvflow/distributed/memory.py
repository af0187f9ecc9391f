"""Whether a program fits into the memory of its devices, asked before it runs."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from qkvflow.errors import OutOfMemory
from qkvflow.limits import memory_limit


def program_bytes(compiled: Any) -> int | None:
    """What a compiled program holds at once, by its own analysis, or None where it has none."""
    try:
        analysis = compiled.memory_analysis()
        return int(
            analysis.argument_size_in_bytes
            + analysis.output_size_in_bytes
            + analysis.temp_size_in_bytes
            - analysis.alias_size_in_bytes
        )
    except Exception:  # Backends without the analysis raise each in their own way.
        return None


def tree_bytes(make: Callable[[], Any]) -> int:
    """What the arrays would take that a function makes."""
    leaves = jax.tree.leaves(eqx.filter_eval_shape(make))
    shapes = [leaf for leaf in leaves if isinstance(leaf, jax.ShapeDtypeStruct)]
    return sum(leaf.size * leaf.dtype.itemsize for leaf in shapes)


def check_fits(needed: int | None, what: str, instead: str, *, host: int = 0) -> None:
    """Refuse what cannot fit, which the system would end without a word. `host` is what the
    machine holds beside its devices, which on a CPU is the same memory."""
    device, machine = jax.local_devices()[0], memory_limit()
    most = (device.memory_stats() or {}).get("bytes_limit")
    if most is None and device.platform == "cpu":
        # The devices of one machine share its memory.
        most = machine and machine // len(jax.local_devices())
        needed, host = None if needed is None else needed + host, 0
    for takes, there in ((needed, most), (host, machine)):
        if takes is not None and there is not None and takes > there:
            raise OutOfMemory(
                f"out of memory: {what} takes {takes / 1e9:.1f} GB and there are "
                f"{there / 1e9:.1f} GB; {instead}"
            )


def check_program(program: Any, *arguments: Any, what: str, instead: str) -> None:
    """Compile what `jax.jit` or `eqx.filter_jit` made, for these arguments, and refuse it if it
    cannot fit. A call with such arguments does not compile it again."""
    compiled = program.lower(*arguments).compile()
    check_fits(program_bytes(getattr(compiled, "compiled", compiled)), what, instead)
