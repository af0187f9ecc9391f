"""HTML that is escaped unless it was made here: text is text, whatever a label or sample holds."""

import html
from collections.abc import Iterable
from typing import Any

VOID = frozenset({"meta", "br", "col"})


class Raw(str):
    """HTML that is not escaped again."""

    __slots__ = ()


def tag(name: str, /, *children: Any, **attributes: Any) -> Raw:
    """An element. `class_` is class, `data_x` is data-x; None and False leave an attribute out."""
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        parts.append(f" {key}" if value is True else f' {key}="{html.escape(str(value))}"')
    parts.append(">")
    if name not in VOID:
        parts += [join(children), f"</{name}>"]
    return Raw("".join(parts))


def join(children: Iterable[Any]) -> Raw:
    """Children one after the other; None is nothing."""
    return Raw("".join(_text(child) for child in children))


def _text(child: Any) -> str:
    if child is None:
        return ""
    if isinstance(child, Raw):
        return child
    if isinstance(child, list | tuple):
        return join(child)
    return html.escape(str(child), quote=False)
