"""The shell of a page that needs nothing but itself.

A content security policy allows the page's own script and style, by their hashes, and nothing else:
no other script runs, and nothing can be loaded.
"""

import base64
import hashlib
import json
from importlib.resources import files
from typing import Any

from qkvflow.report.page.markup import Raw, tag
from qkvflow.report.palette import DARK, LIGHT

SCRIPTS = ("marks.js", "charts.js", "page.js")


def document(title: str, *content: Any, data: Any, style: str = "") -> str:
    """A whole page; `data` is what the scripts of the charts draw."""
    style = _colours() + asset("qkvflow.report.page", "page.css") + style
    script = "\n".join(asset("qkvflow.report.charts", name) for name in SCRIPTS)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)};"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Raw(style)),
    )
    body = tag(
        "body",
        *content,
        tag("div", id="tip", role="status", hidden=True),
        tag("script", Raw(embedded(data)), id="data", type="application/json"),
        tag("script", Raw(script)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def asset(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")


def embedded(content: Any) -> str:
    """JSON that can stand in a script element: no `<` can end it."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _colours() -> str:
    """The palette as CSS: class m3 has the colour of the fourth model."""
    light = "".join(f"--m{i}:{colour};" for i, colour in enumerate(LIGHT))
    dark = "".join(f"--m{i}:{colour};" for i, colour in enumerate(DARK))
    classes = "".join(f".m{i}{{--m:var(--m{i})}}" for i in range(len(LIGHT)))
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}{classes}\n"
