"""The code in the README and in docs/ runs as it stands, each page from top to bottom.

A page begins in a directory with two texts, book.txt and other.txt, `runs/first` (the run that the
README's first command makes; not for a page that makes it), the comparisons `runs/quick` and
`runs/mine`, and the repository's `configs` and `examples`.

- `sh` blocks: each `qkvflow` command runs in this process, with options at its end that make it
  small; a comparison is planned and not run. `make` and `python -m` have to name what there is.
- `python` blocks run in one namespace; one that begins with `# name.py` is that file.
- A block after `<!-- not run: REASON -->` is only parsed: its options have to exist.
"""

import importlib.util
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from own_members import kept_registries

from qkvflow.cli import VERBS, _as_option, main, parser_of
from qkvflow.evaluation import losses

# That commands and blocks run does not depend on how depth is written out.
pytestmark = pytest.mark.usefixtures("rolled", "little_work")

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "configs" / "README.md", *sorted(ROOT.glob("docs/*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>.+?) -->\n+)?^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
RUN = "--warmup 0 --batch-size 2 --no-samples --train.eval_tokens 64"
SMALL = {
    "train": f"--d-model 16 --layers 2 --heads 2 --context 16 {RUN}",
    "finetune": f"--num-steps 3 {RUN}",
    "resume": "--no-samples --train.eval_tokens 64",
    "compare": "--dry-run",
    "eval": "--max-tokens 64",
    "generate": "--tokens 4",
    "sweep-depth": "--max-tokens 64 --num-steps 1 --schemes euler --adaptive 0.1",
    "analyze": "--only weights",
    "models": "standard tong",
}
"""What is put at the end of a command of this verb."""


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    code: str
    runs: bool


def blocks(page: Path) -> list[Block]:
    found = BLOCK.finditer(page.read_text("utf-8"))
    return [Block(each["language"], each["code"], each["reason"] is None) for each in found]


def commands(code: str) -> Iterator[list[str]]:
    """The words of each line, without comments and variables set before; `\\` goes on."""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            del words[0]
        if words:
            yield words


def small(verb: str, words: list[str]) -> list[str]:
    """The same command, made small."""
    more = shlex.split(SMALL.get(verb, ""))
    if verb in ("train", "finetune") or "--extend" in words:
        more += ["--tokens", "64"] if "--tokens" in words else ["--steps", "3"]
    if verb == "train" and not any(word.startswith(("file:", "source:")) for word in words):
        more += ["--data", "file:book.txt"]
    return [verb, *words, *more]


def run_command(words: list[str]) -> None:
    program, first, *rest = words
    if program == "qkvflow":
        assert main(small(first, rest) if first in VERBS else [first]) == 0, shlex.join(words)
    elif program == "make":
        makefile = (ROOT / "Makefile").read_text()
        assert {first, *rest} <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    elif program == "python" and first == "-m":
        assert importlib.util.find_spec(rest[0]), shlex.join(words)
    else:
        assert program in ("pip", "cp", "git", "cd"), shlex.join(words)


def parse_command(words: list[str]) -> None:
    """Refused options end in SystemExit. `...` stands for what a reader fills in."""
    if words[0] == "qkvflow" and words[1] != "launch" and "..." not in words:
        parser_of(words[1]).parse_args([_as_option(word) for word in words[2:]])


def comparison(directory: Path, *labels: str) -> None:
    """A finished one that nobody ran: only its report is wanted."""
    path = ROOT / "tests" / "report" / "synthetic.py"
    spec = importlib.util.spec_from_file_location("synthetic_for_docs", path)
    assert spec is not None
    assert spec.loader is not None
    synthetic: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = synthetic
    spec.loader.exec_module(synthetic)
    models = {label: synthetic.MODELS[label] for label in labels}
    synthetic.experiment(directory, models=models, seeds=3)


@pytest.fixture(scope="module")
def little_work() -> Iterator[None]:
    """No figures for print, and evaluations in batches of about what `SMALL` leaves to evaluate:
    tests of reports and of losses look at both."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qkvflow.report.charts.printed.write", lambda figure, path: ())
        patch.setattr("qkvflow.training.run.draw_losses", lambda directory: None)
        patch.setattr(losses, "_BATCH_TOKENS", 256)
        yield


@pytest.fixture(scope="module")
def beginning(rolled: None, little_work: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every page finds."""
    directory = tmp_path_factory.mktemp("page")
    known = ["Once", "upon", "a", "time", "the", "flow", "of", "def"]
    for name, seed in (("book.txt", 0), ("other.txt", 1)):
        words = np.random.default_rng(seed).choice(known, 600)
        (directory / name).write_text(" ".join(words) + "\n")
    comparison(directory / "runs" / "quick", "standard", "tong")
    comparison(directory / "runs" / "mine", "shared")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        run_command(shlex.split("qkvflow train --size tiny --steps 300 --out runs/first --quiet"))
    for name in ("configs", "examples"):
        shutil.copytree(ROOT / name, directory / name)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(
    page: Path, beginning: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(beginning, tmp_path / "page")
    monkeypatch.chdir(tmp_path / "page")
    if re.search(r"--out runs/first(?![\w-])", page.read_text("utf-8")):
        shutil.rmtree("runs/first")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    namespace: dict[str, Any] = {"__name__": page.stem}
    with kept_registries():
        for block in blocks(page):
            if block.language == "sh":
                for words in commands(block.code):
                    (run_command if block.runs else parse_command)(words)
            elif file := re.match(r"# (\w+\.py)\n", block.code):
                Path(file[1]).write_text(block.code)
            elif block.language == "python" and block.runs:
                exec(compile(block.code, f"{page.name}, a block", "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_stand_in_blocks_that_are_run(page: Path):
    """Not in blocks without a language, and not indented, where nothing would run them."""
    assert not [block for block in blocks(page) if not block.language and "qkvflow " in block.code]
    outside = BLOCK.sub("", page.read_text("utf-8"))
    assert not re.findall(r"^    (?:\S*/)?qkvflow .*", outside, re.MULTILINE)


def test_links_between_pages_lead_somewhere():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        text = BLOCK.sub("", page.read_text("utf-8"))
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]*)?\)", text):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"
