"""`stdlib`: the source of the Python standard library, on every machine without a download.

Files are whole and in sorted order. Left out: tests, installed packages, bundled wheels, and the
generated files that describe the machine Python was built on.
"""

import os
import platform
import sysconfig
from pathlib import Path
from typing import ClassVar

from qkvflow.data.corpora.base import CorpusKind, Spec, refuse_data_dir
from qkvflow.data.corpora.parts.division import DEFAULT_SHARES, divide_files
from qkvflow.data.corpus import Corpus
from qkvflow.data.split import FileSplit, Piece
from qkvflow.errors import UserError
from qkvflow.zoo.registry import CORPORA

_LEFT_OUT = frozenset(
    ("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "_bundled")
)
_GENERATED = ("_sysconfigdata", "_sysconfig_vars")
_LEAST_BYTES = 1_000_000


@CORPORA.register("stdlib")
class Stdlib(CorpusKind):
    """The installed standard library, divided by file."""

    usages: ClassVar[tuple[str, ...]] = ("stdlib",)

    def accepts(self, spec: Spec) -> bool:
        return spec.kind == "stdlib" and not spec.body

    def load(self, spec: Spec, *, data_dir: Path | None, seed: int) -> Corpus:
        refuse_data_dir(spec, data_dir)
        spec.allow(("split",))
        root = Path(sysconfig.get_path("stdlib"))
        names = source_files(root)
        sizes = [(root / name).stat().st_size for name in names]
        if sum(sizes) < _LEAST_BYTES:
            raise UserError(
                f"this Python has almost no library source in {root}; give a text, file:PATH"
            )
        parts = divide_files(names, sizes, spec.fractions(DEFAULT_SHARES))
        train, validation, test = (
            FileSplit(
                [
                    Piece(root / name, name, 0, size)
                    for name, size, part in zip(names, sizes, parts, strict=True)
                    if part == wanted
                ]
            )
            for wanted in range(3)
        )
        provenance = {
            "implementation": platform.python_implementation(),
            "python": platform.python_version(),
        }
        return Corpus(spec.text, train, validation, test, provenance=provenance)


def source_files(root: Path) -> list[str]:
    """Names of the source files below `root`, relative and sorted, without empty ones."""
    names = []
    for folder, below, files in os.walk(root):
        # Pruned here: installed packages may be many times the library.
        below[:] = [f for f in below if f not in _LEFT_OUT and not f.startswith("config-")]
        for name in files:
            path = Path(folder, name)
            if name.endswith(".py") and not name.startswith(_GENERATED) and path.stat().st_size:
                names.append(path.relative_to(root).as_posix())
    return sorted(names)
