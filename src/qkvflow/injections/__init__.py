"""Injections: how the state before a looped core enters every one of its steps.

An injection is a file here, called as the injection is: a final subclass of `AbstractInjection` and
a factory registered with `@INJECTIONS.register(name)`.
"""

from qkvflow.injections.base import AbstractInjection
from qkvflow.injections.none import NoInjection

__all__ = ["AbstractInjection", "NoInjection"]
