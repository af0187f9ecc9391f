"""Files of the user's own that add fields, mixers or models to the zoo."""

import hashlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from qkvflow.errors import UserError


def load_plugins(paths: Iterable[str | Path]) -> None:
    """Run each file once in this process. It adds to the zoo by `qkvflow.register` and
    `qkvflow.zoo.FIELDS`, see `examples/my_field.py`."""
    for path in map(Path, paths):
        _load(path)


def _load(path: Path) -> None:
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"no plugin {path}; give the path of a Python file")
    where = path.resolve()
    # Named by its place: a file given twice is the same module and runs once.
    name = f"qkvflow_plugin_{where.stem}_{hashlib.sha256(str(where).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, where)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except UserError:
        del sys.modules[name]
        raise
    except Exception as error:
        del sys.modules[name]
        line = _line_of(error, where)
        raise UserError(
            f"plugin {path}{line} failed: {type(error).__name__}: {error}; correct it"
        ) from error


def _line_of(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    trace, line = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = f", line {trace.tb_lineno}"
        trace = trace.tb_next
    return line
