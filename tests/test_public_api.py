"""Everything that the packages export says what it is."""

import importlib
import inspect
import pkgutil
from typing import Any

import pytest

import qkvflow

PACKAGES = [
    "qkvflow",
    *(
        each.name
        for each in pkgutil.walk_packages(qkvflow.__path__, "qkvflow.")
        if each.ispkg and "cli" not in each.name
    ),
]


def described(thing: Any) -> bool:
    """A docstring of its own, and not what a dataclass or an Equinox module writes by itself."""
    text = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    return bool(text) and not text.startswith(f"{thing.__name__}(")


@pytest.mark.parametrize("package", PACKAGES)
def test_exports_have_docstrings(package: str):
    module = importlib.import_module(package)
    assert module.__doc__
    missing = []
    for name in getattr(module, "__all__", ()):
        thing = getattr(module, name)
        if not inspect.isclass(thing) and not inspect.isfunction(thing):
            continue
        if not described(thing):
            missing.append(name)
        methods = vars(thing).items() if inspect.isclass(thing) else ()
        missing += [
            f"{name}.{method}"
            for method, value in methods
            if inspect.isfunction(value)
            and not method.startswith("_")
            and not inspect.getdoc(getattr(thing, method))
        ]
    assert missing == []
