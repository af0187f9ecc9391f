"""The rooms of the package and the directions in which they may import each other.

Read from the syntax tree of every module, so an import inside a function counts as well. The
rules are checked on the package, and the checks themselves on small planted trees.
"""

import ast
import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "qkvflow"

# A row may import the rows below it. Rooms of one row do not know each other.
ROWS = (
    ("__main__",),
    ("cli",),
    ("report",),
    ("experiment",),
    ("statistics",),
    ("records",),
    ("analysis", "convert", "finetune", "planning", "serving"),
    ("training",),
    ("evaluation",),
    ("generation",),
    ("runs",),
    ("distributed",),
    ("data",),
    ("interop",),
    ("lm",),
    ("fields",),
    ("injections", "schemes"),
    ("blocks",),
    ("zoo",),
    ("allocator", "compilation", "digests", "limits", "threads"),
    ("files",),
    ("paths",),
    ("errors",),
)
ROW_OF = {room: depth for depth, row in enumerate(ROWS) for room in row}

# Rooms that a room must not know although they stand below it.
MODELS = frozenset({"interop", "lm", "fields", "injections", "schemes", "blocks"})
UNKNOWN_TO: Mapping[str, frozenset[str]] = {
    "report": MODELS,
    "data": MODELS,
    "training": frozenset({"interop"}),
    "fields": frozenset({"schemes"}),
}
# The grid is stated once, beside the schemes; a field that stores a value per step reads it there.
# Corpora and tokenizers register themselves, and have nothing to do with models.
EXCEPT = frozenset(
    {
        ("fields", "qkvflow.schemes.parts.grid"),
        ("data", "qkvflow.zoo.registry"),
    }
)

# Libraries that a module and everything it imports must do without.
JAX = frozenset({"jax", "jaxlib", "equinox", "optax", "diffrax", "lineax", "optimistix", "orbax"})
FIGURES = frozenset({"matplotlib", "plotly"})
WITHOUT: Mapping[str, frozenset[str]] = {
    # `--help` is made from configurations and registries, and answers at once.
    "qkvflow.cli": JAX,
    "qkvflow.zoo": JAX,
    "qkvflow.runs.config": JAX,
    "qkvflow.runs.sections": JAX,
    "qkvflow.report": JAX,
    "qkvflow.experiment": FIGURES,
    "qkvflow.records": JAX,
    "qkvflow.statistics": JAX,
}
EXTRAS = FIGURES | {
    "datasets",
    "diffrax",
    "huggingface_hub",
    "lm_eval",
    "optuna",
    "ray",
    "starlette",
    "tensorboardX",
    "torch",
    "trackio",
    "transformers",
    "uvicorn",
    "wandb",
}
PICKLES = frozenset({"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"})
MOST_LINES = 450


@dataclass(frozen=True)
class Import:
    """One import of the module `target`, or of a name in it that is not a module."""

    importer: str
    target: str
    line: int
    at_start: bool  # runs when the importer is imported: not in a function, not for types alone

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


def module_name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def module_paths(package: Path) -> dict[str, Path]:
    return {module_name(path, package): path for path in sorted(package.rglob("*.py"))}


def walk(node: ast.AST, at_start: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below `node`, and whether it runs when the module is imported."""
    for child in ast.iter_child_nodes(node):
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        starts = at_start and not inside and not typing
        yield child, starts
        yield from walk(child, starts)


def imports_of(name: str, path: Path, modules: Mapping[str, Path]) -> Iterator[Import]:
    """All imports in one module: `import`, `from ... import` and `import_module("...")`."""
    parents = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node, at_start in walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                targets = [alias.name for alias in names]
            case ast.ImportFrom(module=source, names=names, level=level):
                above = parents[: len(parents) - level + 1] if level else []
                base = ".".join(above + ([source] if source else []))
                full = [f"{base}.{alias.name}" for alias in names]
                submodules = [target for target in full if target in modules]
                # A name that is not a module is kept only for the top of the package.
                rest = full if "." not in base and base in modules else [base]
                targets = submodules + (rest if len(submodules) < len(full) else [])
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(target)), *_],
            ):
                targets = [target]
            case _:
                continue
        for target in dict.fromkeys(targets):
            yield Import(name, target, node.lineno, at_start)


@cache
def all_imports(package: Path) -> dict[str, tuple[Import, ...]]:
    modules = module_paths(package)
    return {name: tuple(imports_of(name, path, modules)) for name, path in modules.items()}


def broken_directions(package: Path) -> list[str]:
    """Imports between rooms that go upward, sideways, or to a room that must stay unknown."""
    broken = []
    for name, found in all_imports(package).items():
        room = name.split(".")[1] if "." in name else None
        if room is not None and room not in ROW_OF:
            broken.append(f"{name}: give the room '{room}' a row in ROWS")
            continue
        for each in found:
            top, _, rest = each.target.partition(".")
            target = rest.partition(".")[0]
            if top != package.name or room is None or target in (room, "__version__"):
                continue
            if target not in ROW_OF:
                broken.append(f"{each}: name the room it comes from")
            elif ROW_OF[target] <= ROW_OF[room]:
                broken.append(f"{each}: '{room}' does not stand above '{target}'")
            elif target in UNKNOWN_TO.get(room, ()) and not (
                {(room, each.target), (name, each.target)} & EXCEPT
            ):
                broken.append(f"{each}: '{room}' must not know '{target}'")
    return broken


def reached(package: Path, start: str) -> dict[str, str]:
    """The libraries that importing `start` loads, each with the import that does.

    The top of the package is left out: what it offers, it loads on demand.
    """
    imports = all_imports(package)
    libraries: dict[str, str] = {}
    queue, seen = [start], {package.name}
    while queue:
        name = queue.pop()
        parents = [name.rpartition(".")[0]] if "." in name else []
        if name in seen or name not in imports:
            continue
        seen.add(name)
        queue += parents
        for each in imports[name]:
            if not each.at_start:
                continue
            library = each.target.partition(".")[0]
            if library == package.name:
                queue.append(each.target)
            else:
                libraries.setdefault(library, str(each))
    return libraries


def unwanted(package: Path, start: str, without: frozenset[str]) -> list[str]:
    """How importing `start`, or any module inside it, loads a library of `without`."""
    names = [n for n in all_imports(package) if n == start or n.startswith(start + ".")]
    found = (how for n in names for lib, how in reached(package, n).items() if lib in without)
    return list(dict.fromkeys(found))


def pickles(package: Path) -> list[str]:
    """Uses of pickle: reading one runs whatever code its writer chose."""
    found = [
        str(each)
        for imports in all_imports(package).values()
        for each in imports
        if each.target.partition(".")[0] in PICKLES
    ]
    for name, path in module_paths(package).items():
        for node, _ in walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.keyword(arg="allow_pickle", value=ast.Constant(value=True)):
                    found.append(f"{name}:{node.lineno} allows pickle")
    return found


def long_files(package: Path, most: int = MOST_LINES) -> list[str]:
    lines = {n: path.read_text("utf-8").count("\n") for n, path in module_paths(package).items()}
    return [f"{name}: {count} lines" for name, count in lines.items() if count >= most]


def test_imports_run_downward():
    assert broken_directions(PACKAGE) == []


@pytest.mark.parametrize("start", WITHOUT)
def test_rooms_do_without(start: str):
    assert unwanted(PACKAGE, start, WITHOUT[start]) == []


def test_extras_are_imported_where_they_are_used():
    # `import qkvflow.room` works without any extra; a module inside the room may need one.
    rooms = [n for n, path in module_paths(PACKAGE).items() if n.count(".") == 1]
    found = {n: how for n in rooms for lib, how in reached(PACKAGE, n).items() if lib in EXTRAS}
    assert found == {}


def test_the_rooms_are_documented_in_their_order():
    text = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text("utf-8")
    table = text.split("## Rooms")[1].split("## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert re.findall(r"`(\w+)`", " ".join(cells)) == [room for row in ROWS[1:] for room in row]


def test_no_pickle():
    assert pickles(PACKAGE) == []


def test_files_stay_small():
    assert long_files(PACKAGE) == []


def test_test_files_have_names_of_their_own():
    """pytest imports them by their file's name alone: a second one is not collected."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def plant(root: Path, files: Mapping[str, str]) -> Path:
    """A small package `qkvflow` with one file per entry, and every `__init__.py` it needs."""
    package = root / "qkvflow"
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for folder in [package, *(p for p in package.rglob("*") if p.is_dir())]:
        (folder / "__init__.py").touch()
    return package


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("lm/model.py", "import qkvflow.fields.base\nfrom qkvflow.schemes import base\n"),
        ("lm/model.py", "from . import loss\nfrom .loss import loss\nfrom ..errors import E\n"),
        ("blocks/mlp.py", "import jax\nfrom qkvflow.blocks import base\n"),
        ("fields/per_layer.py", "from qkvflow.schemes.parts.grid import grid\n"),
        ("experiment/runner.py", "from qkvflow import __version__\nfrom qkvflow.zoo import a\n"),
        ("__init__.py", "from qkvflow.zoo import build\n"),
    ],
)
def test_downward_imports_pass(tmp_path: Path, file: str, text: str):
    assert broken_directions(plant(tmp_path, {"errors.py": "", file: text})) == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("blocks/mlp.py", "import qkvflow.fields.base\n"),
        ("blocks/mlp.py", "from qkvflow import schemes\n"),
        ("blocks/mlp.py", "def f():\n    from qkvflow.schemes import base\n"),
        ("blocks/mlp.py", "from ..schemes.base import Scheme\n"),
        ("blocks/mlp.py", "from importlib import import_module\nimport_module('qkvflow.lm')\n"),
        ("blocks/__init__.py", "from ..schemes import base\n"),
        ("errors.py", "from qkvflow.paths import cache_dir\n"),
        ("fields/gated.py", "from qkvflow.schemes.base import Scheme\n"),
        ("data/corpus.py", "from qkvflow.lm import LanguageModel\n"),
        ("training/loop.py", "from qkvflow.interop import gpt2\n"),
        ("zoo/config.py", "from qkvflow.lm import build\n"),
        ("training/loop.py", "from qkvflow import build\n"),
        ("training/loop.py", "import qkvflow\n"),
        ("analysis/spectra.py", "import qkvflow.finetune.run\n"),
        ("unheard_of.py", ""),
    ],
)
def test_planted_imports_are_found(tmp_path: Path, file: str, text: str):
    # `schemes` exists, so that `from qkvflow import schemes` names a module.
    assert len(broken_directions(plant(tmp_path, {"schemes/base.py": "", file: text}))) == 1


def test_planted_libraries_are_found(tmp_path: Path):
    package = plant(
        tmp_path,
        {
            "report/table.py": "from qkvflow.experiment.records import Record\n",
            "experiment/__init__.py": "from qkvflow.experiment import runner\n",
            "experiment/records.py": "def f():\n    import optax\n",
            "experiment/runner.py": "import jax.numpy as jnp\n",
        },
    )
    assert unwanted(package, "qkvflow.report", JAX) == [
        "qkvflow.experiment.runner:1 imports jax.numpy"
    ]
    (package / "experiment" / "__init__.py").write_text("")
    all_imports.cache_clear()
    assert unwanted(package, "qkvflow.report", JAX) == []


def test_planted_pickles_and_long_files_are_found(tmp_path: Path):
    text = "import pickle\nimport numpy as np\nnp.load('a', allow_pickle=True)\n"
    package = plant(tmp_path, {"paths.py": text})
    assert len(pickles(package)) == 2
    assert long_files(package, most=3) == ["qkvflow.paths: 3 lines"]


def test_shapes_are_checked_wherever_they_are_annotated():
    annotated = [path for path in PACKAGE.rglob("*.py") if "jaxtyping" in path.read_text("utf-8")]
    assert annotated
    for path in annotated:
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        spec = importlib.util.find_spec(".".join(parts).removesuffix(".__init__"))
        assert spec is not None
        assert type(spec.loader).__name__ == "_JaxtypingLoader"
