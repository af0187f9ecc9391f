"""Numbers, colours, LaTeX and escaping; and what is written without matplotlib."""

import csv
import io
import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from synthetic import MODELS, experiment

from qkvflow.records import Curve
from qkvflow.report import ReportPaths, build_report, numbers
from qkvflow.report.curves import MOST_BINS, band
from qkvflow.report.files import _last_part
from qkvflow.report.latex import escape
from qkvflow.report.page.markup import Raw, tag
from qkvflow.report.palette import DARK, LIGHT, NIGHT, PAPER

ODD = "a_b & 100% $x^2$ #1 {~} \\end{tabular} <b>"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (7, "7.00"),
        (999.6, "1.00k"),
        (4_865_280, "4.87M"),
        (999_999, "1.00M"),
        (51_512_960, "51.5M"),
        (1.2e13, "12.0T"),
        (3.4e21, "3400E"),
        (None, "–"),
    ],
)
def test_counts(number: float | None, text: str):
    assert numbers.short(number) == text


def test_units():
    assert numbers.memory(1.5 * 2**30) == "1.50 GiB"
    assert numbers.memory(1023.9 * 2**20) == "1.00 GiB"
    assert numbers.memory(12) == "12 B"
    assert numbers.milliseconds(99.96) == "100"
    assert numbers.milliseconds(0.01234) == "0.0123"
    assert numbers.p_value(0.0004) == "<0.001"
    assert numbers.signed(-0.01234) == "−0.012"


# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
SIGHTS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def rgb(colour: str) -> np.ndarray:
    """Linear RGB of #rrggbb."""
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(linear: np.ndarray) -> np.ndarray:
    xyz = TO_XYZ @ np.clip(linear, 0, 1) / np.array([0.9505, 1, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(a: str, b: str) -> float:
    low, high = sorted(float(TO_XYZ[1] @ rgb(colour)) for colour in (a, b))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("palette", "background"), [(LIGHT, PAPER), (DARK, NIGHT)])
def test_colours_stay_apart_for_every_sight(palette: tuple[str, ...], background: str):
    for sight in SIGHTS.values():
        places = [lab(sight @ rgb(colour)) for colour in palette]
        nearest = min(np.linalg.norm(a - b) for a, b in itertools.combinations(places, 2))
        assert nearest >= 15
    assert min(contrast(colour, background) for colour in palette) >= 3


def test_text_is_escaped_unless_it_was_made_here():
    made = tag("p", "<b>", tag("i", "&"), ["x", None], class_='a"b', data_x=1, hidden=False)
    assert made == '<p class="a&quot;b" data-x="1">&lt;b&gt;<i>&amp;</i>x</p>'
    assert isinstance(made, Raw)


def test_latex_escapes():
    assert escape("a_b & 100%") == r"a\_b \& 100\%"
    assert escape("$x^2$ #~{}") == r"\$x\textasciicircum{}2\$ \#\textasciitilde{}\{\}"
    assert escape("\\end") == r"\textbackslash{}end"


def test_latex_is_well_formed(tmp_path: Path, no_figures: None):
    models = {ODD: MODELS["tong"], "standard": MODELS["standard"], "shared": MODELS["shared"]}
    paths = build_report([experiment(tmp_path / "study", models=models)])
    check_latex(paths.tex.read_text())


def test_latex_of_a_full_report(full: ReportPaths):
    check_latex(full.tex.read_text())


def check_latex(text: str) -> None:
    """What LaTeX would stumble over: columns, rules, groups, characters that mean something."""
    code = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert code.isascii()
    bare = re.sub(r"\\[\\{}&%$#_]", lambda m: "N" if m[0] == r"\\" else "", code)
    depth = 0
    for character in bare:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    opened = re.findall(r"\\begin\{(\w+)\}", bare)
    assert sorted(opened) == sorted(re.findall(r"\\end\{(\w+)\}", bare)) == ["table", "tabular"]
    assert re.findall(r"\\(toprule|bottomrule)", bare) == ["toprule", "bottomrule"]
    body = code[code.index(r"\toprule") : code.index(r"\bottomrule")]
    rows = [line for line in body.splitlines() if not line.endswith("rule")]
    assert len(rows) > 3
    for row in rows:
        assert row.endswith(r" \\")
        assert len(re.findall(r"(?<!\\)&", row)) == 7
    plain = re.sub(r"\$\^\{\\dagger\}\$|\$\\pm\$|(?<=\d)~(?=[KMGT]?i?B)", "", bare)
    assert not set(plain) & set('$#^~_"<>|')
    known = {
        "begin",
        "end",
        "centering",
        "footnotesize",
        "setlength",
        "tabcolsep",
        "pm",
        "caption",
        "textbf",
        "toprule",
        "midrule",
    }
    known |= {"bottomrule", "dagger", "textbackslash", "textasciitilde", "textasciicircum"}
    known |= {"textless", "textgreater", "textbar", "multicolumn", "emph"}
    assert set(re.findall(r"\\([a-zA-Z]+)", bare)) <= known


def test_latex_compiles(full: ReportPaths, tmp_path: Path):
    engine = next((e for e in ("tectonic", "pdflatex", "lualatex") if shutil.which(e)), None)
    if engine is None:
        pytest.skip("no LaTeX on this machine; its structure is checked by the other tests")
    lines = [r"\documentclass{article}\usepackage{booktabs}\begin{document}"]
    lines += [full.tex.read_text(), r"\end{document}"]
    (tmp_path / "a.tex").write_text("\n".join(lines))
    flags = [] if engine == "tectonic" else ["-interaction=nonstopmode", "-halt-on-error"]
    subprocess.run([engine, *flags, "a.tex"], cwd=tmp_path, check=True, timeout=60)


def test_the_last_sample_is_found():
    text = "--- step 10 ---\none\n\n--- step 20 ---\ntwo\nstep 3 of the walk\n\n"
    assert _last_part(text) == (20, "two\nstep 3 of the walk\n")
    assert _last_part("no header") == (None, "no header")
    assert _last_part("--- step 10 ---\none\n--- step 20 ---\n\n")[0] == 10


def line(step: int, loss: float | None) -> dict[str, float | int | None]:
    return {"step": step, "tokens": 10 * step, "seconds": step / 2, "loss": loss}


def test_bands_are_over_common_steps():
    a = Curve((), tuple(line(step, 2.0) for step in (10, 20, 30)))
    b = Curve((), (line(10, 4.0), line(20, float("nan")), line(25, 3.0)))
    found = band([a, b, Curve((), ())], "validation")
    assert found is not None
    assert found.step.tolist() == [10, 20, 25]
    assert found.low.tolist() == [2.0, 2.0, 2.0]
    assert found.high == pytest.approx([4.0, 10 / 3, 3.0])
    assert found.seeds == 2
    assert band([a], "train") is None


def test_train_curves_are_averaged_to_few_points():
    curve = Curve(tuple(line(step, float(step % 2)) for step in range(1, 1001)), ())
    found = band([curve], "train")
    assert found is not None
    assert len(found.step) <= MOST_BINS
    assert found.width == 9
    assert abs(found.mean - 0.5).max() < 0.1


def test_without_matplotlib_everything_else_is_written(study: Path):
    """In a process of its own, in which importing matplotlib fails."""
    experiment(study, models={name: MODELS[name] for name in ("standard", "tong", "shared")})
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from qkvflow.cli import main\n"
        f"sys.exit(main(['report', {str(study)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "pip install 'qkvflow[figures]'" in done.stdout
    shown = re.sub(r"\s+", " ", done.stdout)
    for row in csv.DictReader(io.StringIO((study / "results.csv").read_text())):
        assert f"{float(row['nats_per_token']):.4f}" in shown
    assert "need matplotlib" in (study / "report.html").read_text("utf-8")
    assert (study / "results_table.tex").exists()
    assert not (study / "figures").exists()
