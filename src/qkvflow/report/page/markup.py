"""HTML that is escaped unless it was made here: text is text, whatever a label or sample holds."""

import html
from collections.abc import Iterable, Sequence
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


def table(
    heads: Sequence[Any], rows: Iterable[Sequence[Any]], *, words: int = 1, last: int = 99
) -> Raw:
    """A table that scrolls by itself; columns from `words` to `last` hold numbers."""

    def look(place: int) -> str | None:
        return "number" if words <= place <= last else None

    top = [tag("th", head, scope="col", class_=look(i)) for i, head in enumerate(heads)]
    lines = []
    for first, *rest in rows:
        cells = [tag("td", cell, class_=look(i)) for i, cell in enumerate(rest, start=1)]
        lines.append(tag("tr", tag("th", first, scope="row"), cells))
    inside = tag("table", tag("thead", tag("tr", top)), tag("tbody", lines))
    return tag("div", inside, class_="scroll", tabindex=0)


def _text(child: Any) -> str:
    if child is None:
        return ""
    if isinstance(child, Raw):
        return child
    if isinstance(child, list | tuple):
        return join(child)
    return html.escape(str(child), quote=False)
