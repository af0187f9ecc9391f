"""Registries: everything that comes in kinds, by name, with one way to add a member.

    @MIXERS.register("my-mixer")
    def make_my_mixer(config, out_scale, key): ...

A member that comes with the package is a file of its family's folder, called as the member is with
_ for -, and registers itself in the same way when it is first asked for. The names of all members
are therefore known without importing any of them, or JAX. `base.py`, files that begin with _ and
sub-folders are not members. Files of your own register theirs when they are loaded (`--plugin`, or
the entry point group `qkvflow.plugins`).
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from qkvflow.errors import UserError, unknown

T = TypeVar("T")
_PACKAGE = Path(__file__).parents[1]
REGISTRIES: "list[Registry]" = []
"""All of them."""


class Registry(Mapping[str, Any]):
    """Members of one kind by name: a mapping that imports a member when it is asked for."""

    def __init__(self, kind: str, folder: str | None = None) -> None:
        """`kind` is what messages call a member; `folder` is where those of the package lie."""
        self.kind, self._folder = kind, folder
        self._members: dict[str, Any] = {}
        REGISTRIES.append(self)

    def register(self, name: str) -> Callable[[T], T]:
        """A decorator that adds a member under a name that is not taken."""

        def add(member: T) -> T:
            if name in self._members or (name in self._files() and not self._is_own(name, member)):
                raise UserError(f"there is a {self.kind} '{name}' already; choose another name")
            self._members[name] = member
            return member

        return add

    def unregister(self, name: str) -> None:
        """Take a member out again."""
        self._members.pop(name, None)

    def __getitem__(self, name: str) -> Any:
        self.check(name)
        if name not in self._members:
            importlib.import_module(self._module(name))
        return self._members[name]

    def __contains__(self, name: object) -> bool:
        return name in self._members or name in self._files()

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._files(), *self._members]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def check(self, name: str) -> None:
        """Refuse a name that is none of a member, and offer the nearest ones."""
        if name not in self:
            from qkvflow.zoo.plugins import load_installed

            load_installed()
        if name not in self:
            raise unknown(self.kind, str(name), self)

    def _module(self, name: str) -> str:
        assert self._folder is not None
        return f"qkvflow.{self._folder.replace('/', '.')}.{name.replace('-', '_')}"

    def _is_own(self, name: str, member: Any) -> bool:
        return getattr(member, "__module__", None) == self._module(name)

    def _files(self) -> tuple[str, ...]:
        """Names of the members that come with the package, in alphabetical order."""
        if self._folder is None:
            return ()
        files = sorted((_PACKAGE / self._folder).glob("*.py"))
        return tuple(
            file.stem.replace("_", "-")
            for file in files
            if file.stem != "base" and not file.stem.startswith("_")
        )


MODELS = Registry("model")
"""What a model changes of the defaults, as a dictionary; see `entries.register`."""
FIELDS = Registry("field", "fields")
"""`make(make_block, config, key) -> AbstractField`, where `make_block(key)` gives a fresh block."""
MIXERS = Registry("mixer", "blocks")
"""`make(config, out_scale, key) -> AbstractMixer`; weights that write to the residual stream are
scaled by `out_scale`."""
SCHEMES = Registry("scheme", "schemes")
"""`make(options: SchemeOptions) -> AbstractScheme`."""
INJECTIONS = Registry("injection", "injections")
"""`make(config, key) -> AbstractInjection`."""
OPTIMISERS = Registry("optimiser", "training/optimisers")
"""`make(optim, schedule) -> optax.GradientTransformation`."""
CORPORA = Registry("corpus", "data/corpora")
TOKENIZERS = Registry("tokenizer", "data/tokenizers")
TRACKERS = Registry("tracker", "training/trackers")
"""`make(directory, config) -> Tracker`."""
ANALYSES = Registry("analysis", "analysis")
EXECUTORS = Registry("executor", "experiment/executors")
FAMILIES = Registry("Hugging Face model type", "interop/families")
"""`make() -> Family`: checkpoints of one `model_type`, with - for _."""
COMPLETIONS = Registry("completion", "finetune/completions")
"""`complete(directory, reporter)`: what is still to be written when a run that holds `.NAME.json`
has ended, in whichever process that was."""
