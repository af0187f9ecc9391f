"""The page of an analysis in a real browser, and its printed figures, from saved arrays."""

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from browser import Browser

import qkvflow
from qkvflow.analysis import ANALYSES, Subject, analyse, choose
from qkvflow.errors import UserError
from qkvflow.report.analysis import AnalysisPaths, build_analysis
from qkvflow.report.analysis.parts import visible
from qkvflow.report.analysis.sections import SECTIONS

# Nothing a token says may become markup.
PIECES = ("</script>", "<b>", "a", " ", "\n", "é€", '"', "&amp;", "x")
SHAPE: dict[str, Any] = {"d_model": 16, "num_heads": 2, "num_steps": 3, "context": 16}


def name_of(token: int) -> str:
    return PIECES[token % len(PIECES)]


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every analysis of a model that has attention and a state space."""
    model = qkvflow.build(
        "time-indexed-ssm",
        vocab_size=17,
        key=jax.random.key(0),
        d_state=12,
        d_time=6,
        num_frequencies=3,
        init_std=0.3,
        **SHAPE,
    )
    tokens = np.arange(12) % 9
    out = tmp_path_factory.mktemp("analysis")
    about = {
        "model": "time-indexed-ssm",
        "step": 7,
        "num_steps": 3,
        "scheme": "residual",
        "horizon": 3.0,
        "parameters": 12345,
        "text": "".join(map(name_of, tokens.tolist())),
        "notes": ["A note."],
    }
    analyse(Subject(model, tokens, name_of, num_exponents=4), choose(model), out, about)
    return out


@pytest.fixture(scope="session")
def built(saved: Path) -> AnalysisPaths:
    return build_analysis(saved)


@pytest.mark.parametrize(
    ("text", "seen"),
    [(" a", "␣a"), ("\n\n", "⏎⏎"), (" " * 8, "␣×8"), ("", "∅"), ("\x00", "�"), ("oooo", "oooo")],
)
def test_every_token_can_be_seen(text: str, seen: str):
    assert visible(text) == seen


def test_every_analysis_has_a_section():
    assert set(SECTIONS) == set(ANALYSES)


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1200, False)])
def test_the_page(chromium: Browser, built: AnalysisPaths, saved: Path, width: int, dark: bool):
    chromium.open(built.html, width=width, dark=dark)
    assert chromium.errors == []
    assert chromium.requests == [built.html.resolve().as_uri()]
    assert chromium.value("document.documentElement.scrollWidth") == width
    arrays = {name: np.load(saved / f"{name}.npz") for name in SECTIONS}
    count = chromium.count
    # One line per head of QK and OV, and one for each of the two state space maps.
    assert count("#figure-spectra_magnitude .curve") == 2 + 2 + 1 + 1
    values = [arrays["spectra"][f"circuits/{name}/eigenvalues"] for name in ("QK", "OV")]
    spots = sum(each.size for each in values)
    assert count("#figure-spectra_plane .panel:nth-child(-n+2) .spot") == spots
    assert count("#figure-lyapunov_exponents .point") == 4
    assert count("#figure-lyapunov_tokens .words span") == 12
    assert count("#figure-lyapunov_tokens .marked") == 1
    assert count("#figure-trajectory_map .path") == 12
    assert count("#figure-trajectory_map .spot") == 12 * 4
    assert count("#figure-trajectory_lens td") == 12 * 4
    varying = [name for name in arrays["weights"] if name.endswith("/values")]
    assert count("#figure-weights_heat canvas") == len(varying) == 7
    assert count("#figure-state_space_half_lives .thin") == 12
    assert count("main b") == 0
    bad = "[...document.querySelectorAll('svg *')].filter(m => /NaN|undefined|Infinity/"
    assert chromium.value(bad + ".test(m.outerHTML)).length") == 0
    outside = chromium.value(
        "[...document.querySelectorAll('svg .point, svg .spot')].filter(m => {"
        " const a = m.getBoundingClientRect(), b = m.closest('svg').getBoundingClientRect();"
        " return !(a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1"
        " && a.bottom <= b.bottom + 1); }).length"
    )
    assert outside == 0


def test_the_page_says_what_the_arrays_say(chromium: Browser, built: AnalysisPaths, saved: Path):
    chromium.open(built.html)
    lyapunov, trajectory = (np.load(saved / f"{n}.npz") for n in ("lyapunov", "trajectory"))
    # The strongest background is that of the most sensitive token.
    shades = chromium.value(
        "[...document.querySelectorAll('.words span')]"
        ".map(s => Number(s.className.match(/\\d+/)[0]))"
    )
    assert int(np.argmax(shades)) == int(np.argmax(lyapunov["sensitivity"]))
    cells = chromium.value(
        "[...document.querySelectorAll('.lens tbody tr')].map(r =>"
        " [...r.querySelectorAll('td')].map(c => c.dataset.tip))"
    )
    for i, row in enumerate(cells):
        for j, tip in enumerate(row):
            assert tip.endswith(f"p = {trajectory['lens/probabilities'][i, j, 0]:.3f}")
    assert chromium.value("document.querySelector('#spectra .verdict').innerText").startswith("QK")
    # Colours run with depth: the first and the last point of a path differ, as the palette does.
    fills = chromium.value(
        "[...document.querySelectorAll('#figure-trajectory_map .spot')].slice(0, 4)"
        ".map(s => s.getAttribute('fill'))"
    )
    assert fills[0] == "rgb(51,102,214)"
    assert fills[-1] == "rgb(224,160,32)"
    # Heat maps are painted: blue where less than the mean, orange where more.
    painted = chromium.value(
        "(() => { const c = document.querySelector('#figure-weights_heat canvas');"
        " const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " return [c.width, c.height, new Set(d).size]; })()"
    )
    assert painted[0] == 24
    assert painted[2] > 20


def test_figures_are_printed_twice(built: AnalysisPaths):
    assert built.figures is not None
    assert len(built.figures) == 2 * 16
    for path in built.figures:
        start = path.read_bytes()[:8]
        assert start.startswith(b"%PDF-" if path.suffix == ".pdf" else b"\x89PNG")


def test_without_matplotlib_there_is_a_page(saved: Path, monkeypatch: pytest.MonkeyPatch):
    for name in list(sys.modules):
        if name.partition(".")[0] == "matplotlib" or "report.figures" in name or "printed" in name:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    paths = build_analysis(saved)
    assert paths.figures is None
    assert paths.html.stat().st_size > 10_000


def test_what_is_not_an_analysis_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="holds no whole analysis"):
        build_analysis(tmp_path)
    (tmp_path / "analysis.json").write_text('{"findings": {"spectra": []}}')
    (tmp_path / "spectra.npz").write_bytes(b"PK damaged")
    with pytest.raises(UserError, match="holds no whole analysis"):
        build_analysis(tmp_path)
