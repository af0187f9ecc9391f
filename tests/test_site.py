"""The site builds with strict links, and shows what it is made from; notebooks run."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from own_members import kept_registries

from qkvflow.cli import VERBS, parser_of
from qkvflow.runs.config import RunConfig, make_config
from qkvflow.training import train

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/example/qkvflow"
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def pages() -> Any:
    """The module docs/site.py."""
    spec = importlib.util.spec_from_file_location("qkvflow_site", ROOT / "docs" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def train_briefly(config: RunConfig, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Twelve steps, and losses on a hundredth of the text: every line of a notebook is run, and
    what it finds does not matter here."""
    short = {
        "data": {"spec": f"{config.data.spec.partition('?')[0]}?split=0.98,0.01,0.01"},
        "train": {"steps": 12, "eval_tokens": 512},
        "optim": {"warmup": 2},
    }
    return train(make_config(config.to_dict(), short), *args, **kwargs)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make docs` builds it, notebooks executed with short runs; a warning is an error."""
    pytest.importorskip("mkdocs")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    out = tmp_path_factory.mktemp("site")
    # As the workflow that publishes it does, which knows where the repository is.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPOSITORY_URL", REPOSITORY)
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(out), strict=True)
    with kept_registries(), pytest.MonkeyPatch.context() as patch:
        for name in ("qkvflow.training.train", "qkvflow.finetune.run.train"):
            patch.setattr(name, train_briefly)
        build(config)
    return out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path: Path):
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == (
            [],
            None,
        )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Of mkdocs and its plugins.
def test_the_site_builds(site: Path):
    for page in ("index", "tutorial", "data", "reference/python", "reference/command-line"):
        assert (site / f"{page}.html").stat().st_size > 5000
    for path in NOTEBOOKS:
        shown = (site / "notebooks" / f"{path.stem}.html").read_text()
        assert "nats" in shown
        assert "<math" in shown
        # Colab opens what is published beside the page, which installs qkvflow first.
        opened = f"/github/example/qkvflow/blob/gh-pages/notebooks/{path.name}"
        assert f"https://colab.research.google.com{opened}" in shown
        notebook = json.loads((site / "notebooks" / path.name).read_text())
        code = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
        assert code["source"][0] == f"%pip install -q 'qkvflow[figures] @ git+{REPOSITORY}'\n"
    assert "data:image/png;base64" in (site / "notebooks" / "inside.html").read_text()
    assert "<math" in (site / "concepts.html").read_text()
    assert "qkvflow.lm.LanguageModel" in (site / "reference" / "python.html").read_text()
    # Formulas are in the page: nothing is loaded to show them.
    assert "mathjax" not in (site / "concepts.html").read_text().lower()


def test_without_an_address_no_badge(pages: Any, tmp_path: Path):
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": ["# Title"]}]}))
    assert pages.notebook_page(path) == "# Title"
    assert "colab" in pages.notebook_page(path, REPOSITORY)
    with pytest.raises(ValueError, match="needs to begin"):
        pages.colab_notebook(path, REPOSITORY)


def test_the_reference_of_the_command_line_is_whole(pages: Any):
    text = pages.command_line_page()
    for verb in VERBS:
        assert f"## qkvflow {verb}\n" in text
        for action in parser_of(verb)._actions:
            assert all(name in text for name in action.option_strings)


def test_a_notebook_shows_the_value_of_its_last_line(pages: Any, tmp_path: Path):
    code = ["import matplotlib.pyplot as plt\n", "plt.plot([1, 2])\n", "print('a')\n", "1 + 1"]
    cells = [
        {"cell_type": "markdown", "id": "a", "source": ["# Title"]},
        {"cell_type": "code", "id": "b", "source": code},
    ]
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells}))
    title, cell = pages.run_notebook(tmp_path / "n.ipynb")
    assert title.source == "# Title"
    assert cell.printed == "a\n2\n"
    assert len(cell.figures) == 1
    assert cell.figures[0].startswith(b"\x89PNG")
