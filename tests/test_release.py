"""What is published: the wheel of the source distribution works where nothing else of ours is."""

import email
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import qkvflow

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/example/qkvflow"


def run(*command: object, cwd: Path) -> str:
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    words = list(map(str, command))
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution, which was built from the repository."""
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", out, cwd=ROOT)
    [source] = out.glob("qkvflow-*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(out, filter="data")
    unpacked = out / source.name.removesuffix(".tar.gz")
    # As the workflow does before it builds: the addresses of the repository that releases it.
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    steps = workflow["jobs"]["build"]["steps"]
    [addresses] = [step for step in steps if "project.urls" in step.get("run", "")]
    run("sh", "-c", f"URL={REPOSITORY}\n{addresses['run']}", cwd=unpacked)
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=unpacked)
    [built] = out.glob("*.whl")
    return built


def test_what_the_wheel_holds(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [about] = [name for name in names if name.endswith("METADATA")]
        metadata = email.message_from_bytes(archive.read(about))
    assert "qkvflow/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"qkvflow", about.split("/")[0]}
    ours = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert ours <= set(names)
    assert metadata["Version"] == qkvflow.__version__
    assert metadata["License-Expression"] == "MIT"
    assert f"Repository, {REPOSITORY}" in metadata.get_all("Project-URL", [])


@pytest.mark.slow
def test_a_fresh_environment_trains_and_reports(wheel: Path, tmp_path: Path):
    """With this environment's libraries but not its qkvflow: nothing is downloaded."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    options = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel, cwd=tmp_path)
    [packages] = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    where = run(python, "-c", "import qkvflow; print(qkvflow.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path / "env")
    shape = "--d-model 8 --layers 1 --heads 1 --context 8 --batch-size 2 --steps 1 --seeds 1"
    run(
        *(tmp_path / "env" / "bin" / "qkvflow", "compare", "--models", "shared", *shape.split()),
        *("--data", "source:markov?length=2000", "--speed-rounds", "0", "--workers", "1"),
        *("--no-samples", "--out", "one"),
        cwd=tmp_path,
    )
    page = (tmp_path / "one" / "report.html").read_text()
    assert page.count("<figure") > 1
    assert "<script" in page
    assert "shared" in page
    assert (tmp_path / "one" / "runs" / "shared" / "seed-0" / "record.json").exists()


def test_versions_agree():
    version = qkvflow.__version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert re.search(
        rf"^## {re.escape(version)}$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )


def test_workflows_and_hooks_name_what_there_is():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = set()
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        assert yaml.safe_load(path.read_text())["jobs"]
        used |= set(re.findall(r"run: make ([a-z-]+)", path.read_text()))
    assert {"test", "docs", "dist"} <= used <= targets
    assert yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
