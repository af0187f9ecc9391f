"""Plugins: files and installed packages that register members of their own.

A file runs when the user names it, by `--plugin FILE.py` or `load_plugins`. An installed package
names a module of its own in the entry point group `qkvflow.plugins`, which is imported before a
verb runs or when a name is not known. A configuration records the plugins whose members it names,
with the sha256 of the file or the version of the package. Nothing that is read from a file runs a
plugin.
"""

import contextlib
import dataclasses
import hashlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qkvflow.errors import UnknownName, UserError
from qkvflow.zoo import registry

GROUP = "qkvflow.plugins"


@dataclasses.dataclass(frozen=True)
class Plugin:
    """A plugin as configurations record it."""

    name: str
    """Of the file, without its folder, or of the installed package."""
    sha256: str | None = None
    """Of the file."""
    version: str | None = None
    """Of the installed package."""

    def to_dict(self) -> dict[str, str]:
        return {key: value for key, value in dataclasses.asdict(self).items() if value is not None}

    def __str__(self) -> str:
        told = f"sha256 {self.sha256[:12]}" if self.sha256 else f"version {self.version}"
        return f"{self.name} ({told})"

    @property
    def remedy(self) -> str:
        """How to have it."""
        return f"give --plugin {self.name}" if self.sha256 else f"pip install {self.name}"


@dataclasses.dataclass(frozen=True)
class _Loaded:
    plugin: Plugin
    path: Path | None
    members: frozenset[str]


@dataclasses.dataclass
class _Process:
    """What this process has loaded, and what it was told."""

    loaded: list[_Loaded] = dataclasses.field(default_factory=list)
    installed: bool = False
    allow_changed: bool = False


_process = _Process()


def load_plugins(paths: Iterable[str | Path]) -> None:
    """Run each file once in this process; see `examples/my_field.py` for what one may do."""
    for path in map(Path, paths):
        _load_file(path)


def load_installed() -> None:
    """Import the plugins of installed packages, once in this process."""
    if _process.installed:
        return
    from importlib.metadata import entry_points  # Slow to import, and --help does without.

    _process.installed = True  # Set first: a plugin may ask for a name while it is imported.
    for point in entry_points(group=GROUP):
        name = point.dist.name if point.dist else point.value
        plugin = Plugin(name, version=point.dist.version if point.dist else "unknown")
        try:
            _register(plugin, None, point.load)
        except Exception as error:
            _process.installed = False
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise UserError(
                f"the plugin of the installed package {name} {plugin.version} failed: {reason}; "
                "correct or uninstall it"
            ) from error


def allow_changed_plugins(allow: bool = True) -> None:
    """Whether configurations may be read with other plugins than they recorded."""
    _process.allow_changed = allow


def loaded_plugins() -> tuple[Plugin, ...]:
    """The plugins of this process that registered something."""
    return tuple(dict.fromkeys(each.plugin for each in _process.loaded))


def plugin_paths() -> tuple[Path, ...]:
    """The files among them, for `load_plugins` in another process."""
    return tuple(each.path for each in _process.loaded if each.path is not None)


def plugin_setup() -> dict[str, Any]:
    """What `take_setup` needs to give another process the same plugins; plain JSON."""
    return {"files": [str(path) for path in plugin_paths()], "allow": _process.allow_changed}


def take_setup(setup: Mapping[str, Any]) -> None:
    """Load the plugins of the process that this one works for."""
    allow_changed_plugins(setup["allow"])
    load_plugins(setup["files"])


def plugin_options() -> list[str]:
    """The words that give another `qkvflow` command the same plugins as this process."""
    options = [word for path in plugin_paths() for word in ("--plugin", str(path))]
    return [*options, *(["--allow-changed-plugin"] if _process.allow_changed else [])]


def read_plugins(saved: Any) -> tuple[Plugin, ...]:
    """`plugins` of a saved configuration; data only, nothing is run."""
    for each in saved if isinstance(saved, list | tuple) else [saved]:
        good = isinstance(each, dict) and all(isinstance(value, str) for value in each.values())
        if not good or set(each) not in ({"name", "sha256"}, {"name", "version"}):
            raise UserError(
                f"plugins are recorded by name and sha256, not {each!r}; load a file of your own "
                "with --plugin FILE.py"
            )
    return tuple(Plugin(**each) for each in saved)


def check_plugins(recorded: Iterable[Plugin]) -> None:
    """Refuse a plugin that is loaded but is not what was recorded under its name."""
    for each in recorded:
        now = _counterpart(each)
        if now is not None and not _same(now, each) and not _process.allow_changed:
            raise UserError(
                f"the plugin {now} is not the one this was made with, {each}; restore that, or "
                "give --allow-changed-plugin"
            )


def missing_plugins(recorded: Iterable[Plugin]) -> list[Plugin]:
    """Those that are not loaded, in any version."""
    return [each for each in recorded if _counterpart(each) is None]


@contextlib.contextmanager
def naming_missing(recorded: Iterable[Plugin]) -> Iterator[None]:
    """An unknown name inside the block is told with the plugins that are missing."""
    try:
        yield
    except UnknownName as error:
        load_installed()
        missing = missing_plugins(recorded)
        if not missing:
            raise
        remedies = " and ".join(each.remedy for each in missing)
        made = ", ".join(map(str, missing))
        raise UserError(f"{error.what}; this was made with the plugin {made}: {remedies}") from None


def plugins_of(values: Any, recorded: Iterable[Plugin] = ()) -> tuple[Plugin, ...]:
    """What a configuration of these values records: what it recorded before, as it is now, and the
    loaded plugins with a member that it names."""
    words = set(_words(values))
    kept = [_counterpart(each) or each for each in recorded]
    used = [each.plugin for each in _process.loaded if each.members & words]
    return tuple(dict.fromkeys([*kept, *used]))


def _words(values: Any) -> Iterator[str]:
    if isinstance(values, Mapping):
        for each in values.values():
            yield from _words(each)
    elif isinstance(values, str):
        yield values
        yield from re.split(r"[+:,?]", values)


def _counterpart(recorded: Plugin) -> Plugin | None:
    """The loaded plugin that a recorded one is now: the same one, else another of its name."""
    loaded = loaded_plugins()
    same = [each for each in loaded if _same(each, recorded)]
    return next(iter([*same, *(each for each in loaded if each.name == recorded.name)]), None)


def _same(one: Plugin, other: Plugin) -> bool:
    """A file may have been renamed."""
    return one == other or (one.sha256 is not None and one.sha256 == other.sha256)


def _load_file(path: Path) -> None:
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"no plugin {path}; give the path of a Python file")
    where = path.resolve()
    # Named by its place: a file given twice is the same module and runs once.
    name = f"qkvflow_plugin_{where.stem}_{hashlib.sha256(str(where).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, where)
    assert spec is not None
    loader = spec.loader
    assert loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    plugin = Plugin(path.name, sha256=hashlib.sha256(where.read_bytes()).hexdigest())
    try:
        _register(plugin, where, lambda: loader.exec_module(module))
    except Exception as error:
        del sys.modules[name]
        if isinstance(error, UserError):
            raise
        line, reason = _line_of(error, where), " ".join(str(error).split())
        raise UserError(
            f"plugin {path}{line} failed: {type(error).__name__}: {reason}; correct it"
        ) from error


def _register(plugin: Plugin, path: Path | None, work: Callable[[], Any]) -> None:
    """Do the work, and keep whose members came of it; what fails registers nothing."""
    before = [(table, set(table)) for table in registry.REGISTRIES]
    try:
        work()
    except BaseException:
        for table, names in before:
            for name in set(table) - names:
                table.unregister(name)
        raise
    new = frozenset(name for table, names in before for name in set(table) - names)
    if new:
        _process.loaded.append(_Loaded(plugin, path, new))


def _line_of(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    trace, line = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = f", line {trace.tb_lineno}"
        trace = trace.tb_next
    return line
