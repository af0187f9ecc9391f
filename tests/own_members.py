"""The plugins in `examples`, taken out of this process again."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from qkvflow.zoo import plugins
from qkvflow.zoo.registry import REGISTRIES

EXAMPLES = Path(__file__).parents[1] / "examples"


@contextlib.contextmanager
def no_examples() -> Iterator[None]:
    """A block that begins as a new process does and ends so: a file runs once in a process, and
    other tests run over all members that are registered."""
    forget()
    try:
        yield
    finally:
        forget()


@contextlib.contextmanager
def kept_registries() -> Iterator[None]:
    """A block whose members, of whatever file, are forgotten after it."""
    names, loaded = [set(registry) for registry in REGISTRIES], list(plugins._process.loaded)
    modules = set(sys.modules)
    try:
        yield
    finally:
        for registry, before in zip(REGISTRIES, names, strict=False):  # It may have grown.
            for name in set(registry) - before:
                registry.unregister(name)
        plugins._process.loaded[:] = loaded
        for name in set(sys.modules) - modules:
            if name.startswith("qkvflow_plugin_"):
                del sys.modules[name]


def forget() -> None:
    for loaded in list(plugins._process.loaded):
        if loaded.path is not None and loaded.path.parent == EXAMPLES:
            plugins._process.loaded.remove(loaded)
            for registry in REGISTRIES:
                for name in loaded.members:
                    registry.unregister(name)
    for name in [name for name in sys.modules if name.startswith("qkvflow_plugin_my_")]:
        del sys.modules[name]
