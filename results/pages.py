"""Pages whose numbers are made from records.

`<!-- results: NAME KIND OPTIONS -->` begins a block that is written here, `<!-- end -->` ends it;
in a sentence both stand on one line. NAME is a directory of `results/`, or several joined
by `+`, whose runs are merged; `differences` sets several, joined by `,`, side by side. Figures are
those that a page shows as `figures/NAME_FIGURE.png`.
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from qkvflow.digests import read_sealed
from qkvflow.errors import UserError, unknown
from qkvflow.records import altered_files, collect, read_record
from qkvflow.report import markdown
from qkvflow.report.build import analyse
from qkvflow.report.charts.description import Figure, digest
from qkvflow.report.charts.files import save
from qkvflow.report.content import Report
from qkvflow.report.figures import printed
from qkvflow.report.scaling_law import figures as law_figures
from qkvflow.statistics.scaling_law import fitted
from results.collect import PLANS

BLOCK = re.compile(r"(<!-- results: (?P<words>[^>]+?) -->)(?P<text>.*?)(<!-- end -->)", re.DOTALL)
FIGURE = re.compile(r"\]\((?P<path>(?:docs/)?figures/(?P<name>[a-z0-9+-]+)_(?P<figure>\w+)\.png)\)")
NO_RECORDS = "<!-- no records -->"
"""What follows it on a page is older than its records, and is not checked."""
NUMBER = re.compile(r"(?<![\w.])\d+\.\d+(?:e-?\d+)?(?!\.?\d)")
POST_HOC = "post-hoc"
# Code, headings, comments, links' targets and numbers of preprints.
NOT_PROSE = re.compile(
    r"^```.*?^```$|^#.*?$|<!--.*?-->|`[^`\n]*`|\]\([^)]*\)|\b\d{4}\.\d{5}\b",
    re.DOTALL | re.MULTILINE,
)


class Pages:
    """The pages of a repository and the records beside them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.report = cache(self._report)
        self.law = cache(self._law)

    def files(self) -> list[Path]:
        return [self.root / "README.md", *sorted(self.root.glob("docs/*.md"))]

    def rebuild(self) -> list[Path]:
        """Write every block and figure anew; what has changed."""
        changed = []
        for page in self.files():
            old = page.read_text("utf-8")
            self.blocks(page, old)
            if (new := BLOCK.sub(self.block, old)) != old:
                page.write_text(new, "utf-8", newline="\n")
                changed.append(page)
            for path, figure in self.figures(page):
                if not _shows(path, figure):
                    _draw(path, figure)
                    changed.append(path)
        return changed

    def check(self) -> list[str]:
        """A line for everything that the records do not say."""
        said = []
        for page in self.files():
            where, text = page.relative_to(self.root), page.read_text("utf-8")
            for block in self.blocks(page, text):
                if self.block(block) != block[0]:
                    said.append(f"{where}: 'results: {block['words']}' is not what records say")
            for path, figure in self.figures(page):
                if not _shows(path, figure):
                    said.append(f"{where}: {path.name} does not show what records say")
            for numbers, line in self.unfounded(page.name, text):
                said.append(f"{where}: no block and no plan of this page has {numbers}: {line}")
        return said

    def blocks(self, page: Path, text: str) -> list[re.Match[str]]:
        found = list(BLOCK.finditer(text))
        if text.count("<!-- results: ") != len(found) or text.count("<!-- end -->") != len(found):
            raise UserError(f"{page.name}: a block of results does not begin or does not end")
        return found

    def block(self, found: re.Match[str]) -> str:
        """A block with the text that belongs into it."""
        names, kind, *options = found["words"].split()
        if kind not in KINDS:
            raise unknown("kind of block", kind, KINDS)
        try:
            text = KINDS[kind](self, names, options)
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise UserError(f"results: {found['words']}: {error}") from None
        inline = kind == "value"
        return found[1] + (text if inline else f"\n\n{text}\n\n") + found[4]

    # Records

    def directories(self, names: str) -> list[Path]:
        known = [path.name for path in (self.root / "results").iterdir() if path.is_dir()]
        for name in names.split("+"):
            if name not in known:
                raise unknown("study of results/", name, known)
        return [self.root / "results" / name for name in names.split("+")]

    def _report(
        self,
        names: str,
        metric: str = "test",
        margin: float = 0.01,
        pairs: tuple[tuple[str, str, str], ...] = (),
    ) -> Report:
        records = collect(self.directories(names))
        for record in records.finished + records.failed:
            for line in altered_files(record):
                raise UserError(line)
        with tempfile.TemporaryDirectory() as directory:
            how = {"metric": metric, "margin": margin, "pairs": pairs}
            return analyse(records, Path(directory), **how)[0]

    def _law(self, names: str) -> dict[str, Any]:
        """`scaling.json`, its laws fitted again to its points, which have to be the runs'."""
        [directory] = self.directories(names)
        content = read_sealed(directory / "scaling.json")
        ran = {}
        for path in directory.glob("runs/**/record.json"):
            run = read_record(path)
            shape = run.section("model").get("config") or {}
            key = (run.label, shape.get("d_model"), shape.get("num_steps"))
            loss = run.loss("test", "nats") or run.loss("validation", "nats")
            if run.finished and loss is not None:
                ran[(*key, run.section("budget").get("tokens"), run.seed)] = loss
        points = {
            tuple(p[key] for key in ("label", "width", "repeats", "tokens", "seed")): p["loss"]
            for p in content["points"]
        }
        if ran != points:
            raise UserError(f"{directory}: scaling.json and the records below runs/ disagree")
        return fitted(content["points"], content["reference"])

    def plan(self, names: str) -> dict[str, Any]:
        [directory] = self.directories(names)
        for name in PLANS:
            if (directory / name).exists():
                return yaml.safe_load((directory / name).read_text("utf-8"))
        return {}

    # Figures

    def figures(self, page: Path) -> Iterator[tuple[Path, Figure]]:
        """Those of a page that are of a study in `results/`; others are somebody else's."""
        for found in FIGURE.finditer(page.read_text("utf-8")):
            name = found["name"]
            if (self.root / "results" / name.partition("+")[0]).is_dir():
                made = self._figures(name)
                if found["figure"] not in made:
                    raise unknown(f"figure of {name}", found["figure"], made)
                yield page.parent / found["path"], made[found["figure"]]

    def _figures(self, name: str) -> dict[str, Figure]:
        if (self.directories(name)[0] / "scaling.json").exists():
            return {each.name: each for each in law_figures(self.law(name))}
        return printed(self.report(name))

    # Sentences

    def unfounded(self, page: str, text: str) -> Iterator[tuple[str, str]]:
        """Decimal numbers of sentences that no block of the page and no plan has, and the line.

        All of results.md is looked at, of other pages the sections that have blocks.
        """
        text = text.partition(NO_RECORDS)[0]
        known = set()
        for block in BLOCK.finditer(text):
            known |= set(NUMBER.findall(block["text"]))
            for directory in self.directories(block["words"].split()[0].replace(",", "+")):
                for name in PLANS:
                    if (directory / name).exists():
                        known |= set(NUMBER.findall((directory / name).read_text("utf-8")))
        for section in re.split(r"^(?=#+ )", text, flags=re.MULTILINE):
            if page == "results.md" or BLOCK.search(section):
                prose = NOT_PROSE.sub(" ", BLOCK.sub(" ", section))
                for line in prose.splitlines():
                    if wrong := [each for each in NUMBER.findall(line) if each not in known]:
                        yield ", ".join(wrong), line.strip()


def _shows(path: Path, figure: Figure) -> bool:
    return path.exists() and digest(figure).encode() in path.read_bytes()


def _draw(path: Path, figure: Figure) -> None:
    with tempfile.TemporaryDirectory() as directory:
        drawn = save({path.stem: figure}, Path(directory))
        if drawn is None:
            raise UserError("figures need matplotlib: pip install 'qkvflow[figures]'")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(drawn[0].read_bytes())


def _settings(options: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Words, and among them `metric=`, `margin=` and `post-hoc`: verdicts are corrected over the
    pairs named here, not over those that the plan asks about or over all."""
    given = dict(word.split("=", 1) for word in options if re.match(r"(metric|margin)=", word))
    how: dict[str, Any] = {k: float(each) if k == "margin" else each for k, each in given.items()}
    words = [word for word in options if "=" not in word and word != POST_HOC]
    if POST_HOC in options:
        how["pairs"] = tuple((POST_HOC, *word.split(":")) for word in words if ":" in word)
    return words, how


def _of_report(write: Callable[..., str]) -> Callable[[Pages, str, list[str]], str]:
    def made(pages: Pages, names: str, options: list[str]) -> str:
        words, how = _settings(options)
        return write(pages.report(names, **how), *words)

    return made


def _verdicts(report: Report, *pairs: str) -> str:
    if own := [pair for q in report.questions if q.name == POST_HOC for pair in q.pairs]:
        said = "\n".join(f"- {pair['verdict']['sentence']}" for pair in own)
        return f"{said}\n\nCorrected over these pairs alone, which the plan does not name."
    split = [pair.partition(":") for pair in pairs]
    return markdown.verdicts(report, [(a, b) for a, _, b in split])


def _differences(pages: Pages, names: str, options: list[str]) -> str:
    words, how = _settings(options)
    reports = {name: pages.report(name, **how) for name in names.split(",")}
    split = [pair.partition(":") for pair in words]
    return markdown.differences(reports, [(a, b) for a, _, b in split])


def _tuning(pages: Pages, names: str, options: list[str]) -> str:
    files = [directory / "tuning.json" for directory in pages.directories(names)]
    return markdown.tuning(list(map(read_sealed, files)))


def _conversion(pages: Pages, names: str, options: list[str]) -> str:
    [directory] = pages.directories(names)
    files = sorted(directory.glob("conversions/*/*.json"))
    return markdown.conversion([json.loads(path.read_text("utf-8")) for path in files])


KINDS: dict[str, Callable[[Pages, str, list[str]], str]] = {
    "losses": _of_report(markdown.losses),
    "verdicts": _of_report(_verdicts),
    "differences": _differences,
    "curve": _of_report(lambda report, points="5": markdown.curve(report, int(points))),
    "probes": _of_report(markdown.probes),
    "depths": _of_report(markdown.depths),
    "value": _of_report(markdown.value),
    "tuning": _tuning,
    "conversion": _conversion,
    "scaling": lambda pages, names, _: markdown.scaling(pages.law(names)),
    "grid": lambda pages, names, _: markdown.grid(pages.law(names)),
    "needs": lambda pages, names, _: markdown.needs(pages.law(names)),
    "command": lambda pages, names, _: markdown.command(pages.plan(names)["command"]),
}
