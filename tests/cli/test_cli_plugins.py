"""Plugins by the real command line: files, installed packages, and what runs record of them."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from processes import python

from qkvflow.cli import VERBS, main
from qkvflow.data import load_corpus
from qkvflow.errors import UserError
from qkvflow.runs.config import make_config
from qkvflow.runs.resume_rules import check_config
from qkvflow.zoo import names
from qkvflow.zoo.plugins import Plugin, load_plugins, loaded_plugins
from qkvflow.zoo.registry import CORPORA

MINE = Path(__file__).parent / "mine.py"
SHA256 = hashlib.sha256(MINE.read_bytes()).hexdigest()
EXPORT = """
import sys
import jax
from qkvflow.lm import build_config
from qkvflow.runs.config import make_config
from qkvflow.runs.corpus import load_data
from qkvflow.runs.export import write_export
from qkvflow.runs.load import Trained
from qkvflow.zoo.plugins import load_plugins
from pathlib import Path

load_plugins([sys.argv[1]])
config = make_config({
    "model": {"name": "my-model"},
    "data": {"spec": "source:my-words", "tokenizer": "my-shift:3"},
})
tokenizer = load_data(config).tokenizer
model = build_config(config.model.config, vocab_size=tokenizer.vocab_size, key=jax.random.key(0))
write_export(Trained(model, tokenizer, config), Path(sys.argv[2]), None)
"""
# What each verb cannot do without, so that its options parse.
REQUIRED: Mapping[str, list[str]] = {
    "compare": ["--out", "x"],
    "tune": ["--out", "x"],
    "scaling-law": ["--out", "x"],
    "import": ["x", "--out", "y"],
    "convert": ["x", "--field", "shared", "--out", "y"],
    "serve": ["x"],
    "train": ["--out", "x"],
    "resume": ["x"],
    "launch": ["-n", "1"],
    "finetune": ["x", "--out", "y", "--data", "stdlib"],
    "eval": ["x"],
    "lm-eval": ["x", "--tasks", "t"],
    "sweep-depth": ["x"],
    "generate": ["x"],
    "analyze": ["x"],
    "report": ["x"],
    "export": ["x", "--to", "y"],
}


def qkvflow(*argv: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "qkvflow", *argv, **environment)


def started(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """By an interpreter of its own, which reads everything as users' does."""
    command = [sys.executable, *map(str, words)]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that was said instead."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("qkvflow: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plugins") / "export"
    python("-c", EXPORT, MINE, out).check_returncode()
    return out


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """The plugin with another line in it, under the same name."""
    path = tmp_path / MINE.name
    path.write_text(MINE.read_text() + "\n# Another line.\n")
    return path


def saved(**sections: dict[str, str]) -> dict[str, object]:
    """A configuration that was made with a plugin which is not loaded."""
    return {**sections, "plugins": [{"name": "theirs.py", "sha256": "0" * 64}]}


# Files


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_loads_plugins_first(verb: str, capsys: pytest.CaptureFixture[str]):
    argv = [verb, "--plugin", "absent.py", *REQUIRED.get(verb, [])]
    assert main(argv) == 2
    assert capsys.readouterr().err == (
        "qkvflow: no plugin absent.py; give the path of a Python file\n"
    )
    said = help_of(verb, "--help", capsys)
    if "--help-all" in said:
        said = help_of(verb, "--help-all", capsys)
    assert "--plugin FILE.py" in said
    assert "--allow-changed-plugin" in said


def help_of(verb: str, option: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as done:
        main([verb, option])
    assert done.value.code == 0
    return capsys.readouterr().out


def test_models_lists_a_model_of_ones_own():
    done = started("-m", "qkvflow", "models", "my-model", "--plugin", MINE, "--json")
    [row] = json.loads(done.stdout)
    assert row["params"]["total"] > 0
    assert "unknown model 'my-model'" in refused(qkvflow("models", "my-model"))


def test_an_export_records_its_plugin_and_wants_it_back(exported: Path, tmp_path: Path):
    config = json.loads((exported / "config.json").read_text())["config"]
    assert config["plugins"] == [{"name": "mine.py", "sha256": SHA256}]
    # All three names are of the plugin; the first one that is looked for is told.
    assert refused(qkvflow("eval", exported)) == (
        f"qkvflow: unknown model 'my-model'; this was made with the plugin mine.py (sha256 "
        f"{SHA256[:12]}): give --plugin mine.py\n"
    )
    done = qkvflow("eval", exported, "--plugin", MINE, "--json")
    assert done.returncode == 0, done.stderr
    [result] = json.loads(done.stdout)["results"]
    # Fresh weights predict next to nothing.
    assert result["nats"] == pytest.approx(np.log(256), rel=0.01)
    # A file is known by what it says, not by what it is called.
    other = shutil.copy(MINE, tmp_path / "renamed.py")
    again = qkvflow("eval", exported, "--plugin", other, "--json")
    assert json.loads(again.stdout)["results"] == [result]


def test_a_changed_plugin_is_refused_unless_allowed(exported: Path, changed: Path):
    argv = ("generate", exported, "--tokens", "3", "--prompt", "depth", "--plugin", changed)
    new = hashlib.sha256(changed.read_bytes()).hexdigest()
    assert refused(qkvflow(*argv)) == (
        f"qkvflow: the plugin mine.py (sha256 {new[:12]}) is not the one this was made with, "
        f"mine.py (sha256 {SHA256[:12]}); restore that, or give --allow-changed-plugin\n"
    )
    done = qkvflow(*argv, "--allow-changed-plugin")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("depth")


def test_an_analysis_of_ones_own_has_a_page(exported: Path, tmp_path: Path):
    out = tmp_path / "analysis"
    argv = ("--plugin", MINE, "--only", "weights,my-sizes,spectra", "--text", "depth")
    done = qkvflow("analyze", exported, *argv, "--out", out)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if not line.startswith((" ", "wrote"))]
    assert told == ["spectra", "my-sizes", "weights"]  # By their numbers.
    arrays = np.load(out / "my-sizes.npz")
    page = (out / "analysis.html").read_text()
    assert f"The largest weight is {arrays['largest'].max():.3f}." in page
    assert re.search(r'id="?figure-my_sizes_two', page)
    assert (out / "figures" / "my_sizes_largest.pdf").exists()
    [data] = re.findall(r"<script[^>]*json[^>]*>(.*?)</script>", page, re.S)
    charts = json.loads(data)["figures"]
    [line] = charts["my_sizes_largest"]["panels"][0]["series"]
    assert line["x"] == [0.5, 1.0]
    np.testing.assert_allclose(line["y"], arrays["largest"], rtol=1e-4)
    assert len(charts["my_sizes_two"]["panels"][0]["series"]) == 2


def test_launch_hands_plugins_on(exported: Path):
    argv = ("eval", exported, "--json", "--max-tokens", "16")
    done = qkvflow("launch", "-n", "1", "--plugin", MINE, "--", *argv)
    assert done.returncode == 0, done.stderr
    assert '"model": "my-model"' in done.stdout


def test_plan_compiles_a_model_of_ones_own():
    argv = ("--model", "my-model", "--data", "source:my-words", "--tokenizer", "my-shift")
    done = qkvflow("plan", "--plugin", MINE, *argv, "--vocab", "256", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"] == "my-model"


def test_a_run_with_members_of_a_plugin(tmp_path: Path):
    """Model, corpus, tokenizer and tracker, in training and when it is resumed."""
    out = tmp_path / "run"
    argv = ("--model", "my-model", "--data", "source:my-words", "--tokenizer", "my-shift:3")
    small = ("--steps", "2", "--batch-size", "2", "--quiet", "--no-samples")
    done = qkvflow("train", "--plugin", MINE, *argv, *small, "--track", "my-lines", "--out", out)
    assert done.returncode == 0, done.stderr
    config = (out / "config.yaml").read_text()
    assert f"plugins:\n- name: mine.py\n  sha256: {SHA256}\n" in config
    logged = [json.loads(line) for line in (out / "my-lines.txt").read_text().splitlines()]
    assert {"train", "validation"} <= {line["kind"] for line in logged}
    assert json.loads((out / "tokenizer.json").read_text()) == {"qkvflow": "my-shift", "by": 3}
    assert "give --plugin mine.py" in refused(qkvflow("resume", out))
    done = qkvflow("resume", out, "--plugin", MINE)
    assert "nothing to do" in done.stdout


# Installed packages


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return install(
        tmp_path / "site", "1.0", 'import qkvflow\nqkvflow.register("boxed", d_model=8)\n'
    )


def install(site: Path, version: str, code: str) -> Path:
    """A distribution `boxed-models` with a module that is named as a plugin."""
    shutil.rmtree(site, ignore_errors=True)
    info = site / f"boxed_models-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: boxed-models\nVersion: {version}\n"
    )
    (info / "entry_points.txt").write_text("[qkvflow.plugins]\nboxed = boxed_models\n")
    (site / "boxed_models.py").write_text(code)
    return site


def path_with(site: Path) -> str:
    return os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])


def test_an_installed_package_registers(site: Path):
    environment = {"PYTHONPATH": path_with(site)}
    done = started("-m", "qkvflow", "models", "--json", **environment)
    assert "boxed" in [row["name"] for row in json.loads(done.stdout)]
    code = "import qkvflow; print(qkvflow.zoo.entry('boxed')['d_model'])"
    done = started("-c", f"import qkvflow.zoo; {code}", **environment)
    assert done.stdout == "8\n"


def test_a_configuration_records_the_version_of_a_package(site: Path):
    make = "from qkvflow.runs import make_config, write_yaml\n"
    fresh = make + "print(write_yaml(make_config({'model': {'name': 'boxed'}})), end='')"
    written = python("-c", fresh, PYTHONPATH=path_with(site)).stdout
    assert "plugins:\n- name: boxed-models\n  version: '1.0'\n" in written
    run_dir = site.parent / "run"
    run_dir.mkdir()
    (run_dir / "config.yaml").write_text(written)
    argv = ("eval", run_dir)  # Which has no weights yet: told once its configuration is read.
    assert "has no checkpoint yet" in refused(qkvflow(*argv, PYTHONPATH=path_with(site)))
    assert "version 1.0): pip install boxed-models" in refused(qkvflow(*argv))
    install(site, "1.1", (site / "boxed_models.py").read_text())
    assert "boxed-models (version 1.1) is not the one this was made with" in refused(
        qkvflow(*argv, PYTHONPATH=path_with(site))
    )
    allowed = qkvflow(*argv, "--allow-changed-plugin", PYTHONPATH=path_with(site))
    assert "has no checkpoint yet" in refused(allowed)


def test_a_broken_package_is_named_and_help_does_without_it(site: Path):
    install(site, "1.0", "import no_such_library\n")
    assert refused(qkvflow("models", PYTHONPATH=path_with(site))) == (
        "qkvflow: the plugin of the installed package boxed-models 1.0 failed: "
        "ModuleNotFoundError: No module named 'no_such_library'; correct or uninstall it\n"
    )
    for argv in (["--help"], ["--version"], ["train", "--help"]):
        assert qkvflow(*argv, PYTHONPATH=path_with(site)).returncode == 0


# What is read from files


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"name": "theirs"}},
        {"model": {"scheme": "theirs"}},
        {"model": {"block": "attention+theirs"}},
        {"optim": {"name": "theirs"}},
        {"track": {"name": "theirs"}},
        {"data": {"spec": "source:theirs?seed=1"}},
        {"data": {"spec": "theirs:a"}},
        {"data": {"tokenizer": "theirs:3"}},
    ],
    ids=str,
)
def test_a_missing_plugin_is_named_for_every_kind(sections: dict[str, dict[str, str]]):
    with pytest.raises(UserError) as caught:
        make_config(saved(**sections))
    said = str(caught.value)
    assert "'theirs" in said
    assert said.endswith("the plugin theirs.py (sha256 000000000000): give --plugin theirs.py")
    assert "\n" not in said


def test_a_plugin_that_is_not_needed_is_not_asked_for_and_stays_recorded():
    config = make_config(saved(model={"name": "standard"}))
    assert make_config(config.to_dict()) == config
    assert [each.name for each in config.plugins] == ["theirs.py"]
    assert check_config(config.to_dict(), config, step=0, extend=False) == []


def test_nothing_that_is_read_runs_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    with pytest.raises(UserError, match=r"give --plugin theirs\.py"):
        make_config(saved(model={"name": "theirs"}))
    for plugins in (["theirs.py"], "theirs.py", [{"name": "theirs.py"}], [{"path": "x"}], 5, None):
        with pytest.raises(UserError, match=r"with --plugin FILE\.py"):
            make_config({"plugins": plugins})
    assert not (tmp_path / "ran").exists()


def test_a_plugin_that_fails_registers_nothing(tmp_path: Path):
    before = names(), loaded_plugins(), list(CORPORA)
    path = tmp_path / "half.py"
    path.write_text(
        "import qkvflow\nfrom qkvflow.zoo.registry import CORPORA\n"
        "qkvflow.register('half')\nCORPORA.register('half')(object)\n1 / 0\n"
    )
    for _ in range(2):
        with pytest.raises(UserError, match=r"half\.py, line 5 failed: ZeroDivisionError"):
            load_plugins([path])
    assert (names(), loaded_plugins(), list(CORPORA)) == before
    path.write_text("import qkvflow\nqkvflow.register('standard')\n")
    with pytest.raises(UserError, match="there is a model 'standard' already"):
        load_plugins([path])


def test_the_documented_example(tmp_path: Path):
    text = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", text, re.S)
    path = tmp_path / "my_words.py"
    path.write_text(code)
    load_plugins([path, path])  # The second time it is there.
    try:
        config = make_config({"data": {"spec": "source:my-words"}})
        assert config.plugins == (Plugin("my_words.py", hashlib.sha256(code.encode()).hexdigest()),)
        assert make_config(config.to_dict()) == config
        assert make_config({}).plugins == ()  # Loaded, and not used.
        assert load_corpus("source:my-words").train.bytes == 45 * 1000
        with pytest.raises(UserError, match="unknown source 'my-wrods'; did you mean my-words"):
            load_corpus("source:my-wrods")
    finally:
        CORPORA.unregister("my-words")


@pytest.mark.parametrize(
    "argv", [["--help"], ["train", "--help-all"], ["compare", "--help-all"]], ids=str
)
def test_help_does_not_import_jax(argv: list[str]):
    code = (
        "import sys; from qkvflow.cli import main\n"
        f"try: main({argv!r})\n"
        "finally: assert not {'jax', 'numpy', 'equinox'} & set(sys.modules)"
    )
    done = started("-c", code)
    assert done.returncode == 0, done.stderr
    assert ("--optim.lr" in done.stdout) == (len(argv) > 1)
