"""What the site has besides the pages in docs/: hooks of mkdocs.yml.

- README, CONTRIBUTING, CHANGELOG, SECURITY and configs/README.md, with their links turned;
- notebooks are executed and shown with their outputs, and with a button that opens them in Colab
  where the address of the repository is known (`REPOSITORY_URL`, given by the workflow);
- the reference of the command line is made from the parsers, that of Python from what packages
  export (mkdocstrings fills it from the docstrings);
- formulas become MathML when the site is built, so that pages load nothing to show them.
"""

import ast
import base64
import contextlib
import html
import importlib
import io
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
COPIED = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
    "settings.md": "configs/README.md",
}
ROOMS = (
    *("qkvflow", "qkvflow.zoo", "qkvflow.lm", "qkvflow.fields", "qkvflow.blocks"),
    *("qkvflow.schemes", "qkvflow.injections", "qkvflow.runs", "qkvflow.data"),
    *("qkvflow.training", "qkvflow.evaluation", "qkvflow.generation", "qkvflow.analysis"),
    *("qkvflow.finetune", "qkvflow.interop", "qkvflow.statistics", "qkvflow.report"),
)
"""Packages whose exports are the Python interface."""

GITHUB = "https://github.com/"
COLAB = "https://colab.research.google.com"
INSTALL = [
    "# Where qkvflow is not installed yet, from a clone of its repository:\n",
    "# %pip install -q '.[figures]'\n",
]
"""How the code of every notebook begins."""


class Cell(NamedTuple):
    """A cell that was run: its source, what it printed, and the figures it drew, as PNG."""

    kind: str
    source: str
    printed: str = ""
    figures: tuple[bytes, ...] = ()


def run_notebook(path: Path) -> list[Cell]:
    """Execute the cells in order, in one namespace."""
    import matplotlib

    matplotlib.use("Agg")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    cells = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                _execute(source, namespace, f"{path.name}, {cell['id']}")
            cells.append(Cell("code", source, printed.getvalue(), _figures()))
        else:
            cells.append(Cell("markdown", source))
    return cells


def _execute(source: str, namespace: dict[str, Any], name: str) -> None:
    """As a notebook does: the value of a last line that is an expression is shown."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
        if value is not None:
            print(repr(value))


def _figures() -> tuple[bytes, ...]:
    import matplotlib.pyplot as plt

    drawn = []
    for number in plt.get_fignums():
        buffer = io.BytesIO()
        plt.figure(number).savefig(buffer, format="png", dpi=110)
        drawn.append(buffer.getvalue())
    plt.close("all")
    return tuple(drawn)


def colab_notebook(path: Path, repository: str) -> str:
    """The notebook as Colab opens it: it installs qkvflow from the repository first."""
    notebook = json.loads(path.read_text("utf-8"))
    sources = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    if not sources or sources[0][:2] != INSTALL:
        raise ValueError(f"{path.name} needs to begin its code with {''.join(INSTALL)!r}")
    sources[0][:2] = [f"%pip install -q 'qkvflow[figures] @ git+{repository}'\n"]
    return json.dumps(notebook, indent=1)


def colab_button(name: str, repository: str) -> str:
    """A link that opens the notebook of the published site in Colab."""
    owned = repository.removeprefix(GITHUB)
    address = f"{COLAB}/github/{owned}/blob/gh-pages/notebooks/{name}.ipynb"
    return f"[Open in Colab]({address}){{ .md-button }}"


def notebook_page(path: Path, repository: str | None = None) -> str:
    """A notebook with its outputs, in Markdown."""
    parts = [] if repository is None else [colab_button(path.stem, repository)]
    for cell in run_notebook(path):
        parts.append(cell.source if cell.kind == "markdown" else f"```python\n{cell.source}\n```")
        if cell.printed.strip():
            parts.append(f"```text\n{cell.printed.rstrip()}\n```")
        for figure in cell.figures:
            parts.append(f"![](data:image/png;base64,{base64.b64encode(figure).decode()})")
    return "\n\n".join(parts)


def command_line_page() -> str:
    """The reference of the command line, from the parsers."""
    from qkvflow.cli import VERBS, parser_of
    from qkvflow.cli.examples import EXAMPLES

    parts = [
        "# Command line",
        "Options of a configuration, of plugins and of devices are the same for all verbs that "
        "take them, and are listed with the first.",
    ]
    shown: set[str] = set()
    for verb, text in VERBS.items():
        parser = parser_of(verb)
        parts += [f"## qkvflow {verb}", f"{text[0].upper()}{text[1:]}."]
        parts += ["```sh\n" + "\n".join(EXAMPLES.get(verb, ())) + "\n```"]
        for group in parser._action_groups:
            rows = [_row(action) for action in group._group_actions if action.help]
            if not rows or (group.title or "") in shown:
                continue
            title = str(group.title)
            # Short names differ from verb to verb.
            if title.startswith(("configuration: ", "plugins", "devices")) and "short" not in title:
                shown.add(title)
            parts += [f"**{group.title}**", "| option | |\n|---|---|\n" + "\n".join(rows)]
    return "\n\n".join(parts)


def _row(action: Any) -> str:
    names = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    metavar = "" if action.nargs == 0 or not action.option_strings else f" {action.metavar or 'X'}"
    text = str(action.help).replace("%%", "%").replace("|", "\\|").replace("*", "\\*")
    written = f"{names}{metavar}".replace("|", "\\|")
    return f"| `{written}` | {text} |"


def python_page() -> str:
    """The reference of the Python interface: what the packages export."""
    parts = ["# Python"]
    for room in ROOMS:
        module = importlib.import_module(room)
        about = (module.__doc__ or "").split("\n\n")[0]
        parts += [f"## `{room}`", about]
        parts += [f"::: {room}.{name}" for name in module.__all__ if _is_documented(module, name)]
    return "\n\n".join(parts)


def _is_documented(module: Any, name: str) -> bool:
    """Classes and functions; the rest (registries, constants) stands beside its code."""
    return callable(getattr(module, name)) and bool(getattr(getattr(module, name), "__doc__", None))


def copied_page(source: str) -> str:
    """A page of the repository's root, with its links turned."""
    text = (ROOT / source).read_text("utf-8")
    homes = {origin: page for page, origin in COPIED.items()}

    def turned(match: re.Match[str]) -> str:
        target, anchor = match[1], match[2] or ""
        target = target.removeprefix("../")
        target = homes.get(target, target.removeprefix("docs/"))
        if target.endswith((".cff", "LICENSE")) or target == "examples":
            return f"](examples.md{anchor})" if target == "examples" else "](index.md)"
        return f"]({target.replace('.ipynb', '.md')}{anchor})"

    return re.sub(r"\]\(([^)#:\s]+)(#[\w-]*)?\)", turned, text)


def examples_page() -> str:
    parts = ["# Examples"]
    for path in sorted((ROOT / "examples").glob("*.py")):
        parts += [f"## {path.name}", f"```python\n{path.read_text('utf-8')}```"]
    return "\n\n".join(parts)


# Hooks


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made."""
    from mkdocs.structure.files import File, InclusionLevel

    address = (config.repo_url or "").rstrip("/")
    repository = address if address.startswith(GITHUB) else None
    made = {page: copied_page(source) for page, source in COPIED.items()}
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        made[f"notebooks/{path.stem}.md"] = notebook_page(path, repository)
        if repository is not None:
            made[f"notebooks/{path.name}"] = colab_notebook(path, repository)
    made["reference/command-line.md"] = command_line_page()
    made["reference/python.md"] = python_page()
    made["examples.md"] = examples_page()
    for page, content in made.items():
        included = InclusionLevel.INCLUDED  # Notebooks that are not made stay out.
        files.append(File.generated(config, page, content=content, inclusion=included))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Notebooks are pages here."""
    return re.sub(r"\((notebooks/\w+)\.ipynb\)", r"(\1.md)", markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Formulas as MathML."""
    from latex2mathml.converter import convert

    def formula(match: re.Match[str]) -> str:
        display = match[1] == "div"
        return convert(html.unescape(match[2]), display="block" if display else "inline")

    return re.sub(
        r'<(div|span) class="arithmatex">\\[\[(](.*?)\\[\])]</\1>',
        formula,
        content,
        flags=re.DOTALL,
    )
