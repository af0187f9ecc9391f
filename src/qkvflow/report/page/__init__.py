"""`report.html`: one page that needs nothing but itself.

Figures are drawn by the page's own script from the JSON it carries, so that they fit the width of
a phone, answer to touch and follow the light. A content security policy allows that script and
style, by their hashes, and nothing else: no other script runs, and nothing can be loaded.
"""

import base64
import hashlib
from importlib.resources import files

from qkvflow.report.content import Report
from qkvflow.report.page import details, opening, plots
from qkvflow.report.page.data import chart_data, embedded
from qkvflow.report.page.markup import Raw, tag
from qkvflow.report.palette import DARK, LIGHT

SCRIPTS = ("core.js", "rows.js", "planes.js", "page.js")


def to_html(report: Report) -> str:
    """The whole page."""
    style = _colours() + _asset("page.css")
    script = "\n".join(_asset(name) for name in SCRIPTS)
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
        tag("title", f"{opening.question(report)} – qkvflow report"),
        tag("style", Raw(style)),
    )
    main = tag(
        "main",
        opening.sections(report),
        plots.sections(report),
        details.sections(report),
    )
    body = tag(
        "body",
        opening.header(report),
        main,
        tag("div", id="tip", role="status", hidden=True),
        tag("script", Raw(embedded(chart_data(report))), id="data", type="application/json"),
        tag("script", Raw(script)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _asset(name: str) -> str:
    return files("qkvflow.report.page").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _colours() -> str:
    """The palette as CSS: class m3 has the colour of the fourth model."""
    light = "".join(f"--m{i}:{colour};" for i, colour in enumerate(LIGHT))
    dark = "".join(f"--m{i}:{colour};" for i, colour in enumerate(DARK))
    classes = "".join(f".m{i}{{--m:var(--m{i})}}" for i in range(len(LIGHT)))
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}{classes}\n"
