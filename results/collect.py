"""Keep the records of a study in the repository, without its weights.

    python -m results.collect RUNDIR NAME

RUNDIR is the directory of a comparison, a scaling law, a search, or the study of conversion, whose
runs `seed-S/A/B` become `runs/A-B/seed-S` with that label. Records stay as they were, but for the
hash of `metrics.jsonl`, of which validation is kept line by line and training as at most 30 means.
In a study that went on from what was collected of it, the runs collected before stay as they are.
The runs of a scaling law keep no curves. A study that was collected before is replaced.
"""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from qkvflow.digests import SEAL, read_sealed, sealed
from qkvflow.errors import UserError
from qkvflow.records import altered_files, curve, read_record
from qkvflow.runs.rundir import METRICS, RECORD, describe_growing

HERE = Path(__file__).parent
PLANS = ("plan.yaml", "grid.yaml", "study.yaml")
BESIDE = ("baselines.json", "speed.json", "tuning.json", "scaling.json")
MOST_LINES = 30
COLUMNS = ("step", "tokens", "seconds", "loss")


def collect(source: Path, name: str, root: Path = HERE) -> Path:
    """Copy a study to `results/NAME`; everything is read and checked first."""
    if not re.fullmatch(r"[a-z0-9-]+", name):
        raise UserError(f"a name is of a-z, 0-9 and -, not '{name}'")
    places = _runs(source)
    files = [each for each in BESIDE if (source / each).exists()]
    if not places and not files:
        raise UserError(f"{source} holds no records of runs and no tuning.json")
    out = root / f".{name}"
    shutil.rmtree(out, ignore_errors=True)
    try:
        out.mkdir(parents=True)
        for place, (run, label) in places.items():
            _copy_run(run, label, out / place, curves="scaling.json" not in files)
        for each in files:
            _write(out / each, read_sealed(source / each))
        for path in sorted(source.glob("seed-*/*/*/conversion.json")):
            seed, field, *_ = path.relative_to(source).parts
            content = json.loads(path.read_text("utf-8"))
            del content["source"]["path"]
            _write(out / "conversions" / field / f"{seed}.json", content)
        for each in PLANS:
            if (source / each).exists():
                _copy_plan(source / each, out / each, name)
        shutil.rmtree(root / name, ignore_errors=True)
        return out.rename(root / name)
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _runs(source: Path) -> dict[str, tuple[Path, str | None]]:
    """Run directories by their place in the copy, and the label of those that are to get one."""
    found: dict[str, tuple[Path, str | None]] = {}
    for run in sorted(source.glob("runs/**/seed-*")):
        found[str(run.relative_to(source))] = run, None
    for path in sorted(source.glob(f"seed-*/**/{RECORD}")):
        seed, *parts = path.parent.relative_to(source).parts
        label = "-".join(parts)
        found[f"runs/{label}/{seed}"] = path.parent, label
    return found


def _copy_run(source: Path, label: str | None, out: Path, *, curves: bool) -> None:
    record = read_record(source / RECORD)
    if changed := altered_files(record):
        raise UserError(changed[0])
    if "collected" in record.content:
        shutil.copytree(source, out)
        return
    out.mkdir(parents=True)
    if curves and (source / METRICS).exists():
        (out / METRICS).write_text(_thinned(source), "utf-8")
    content = {**record.content, "label": label or record.label}
    content |= {"files": describe_growing(out), "collected": content.get(SEAL)}
    _write(out / RECORD, sealed(content))


def _thinned(run: Path) -> str:
    """Losses of a run: validation as it is, training as means of equally many lines in a row."""
    logged = curve(run)
    kept = [
        {"kind": "validation", **{key: line.get(key) for key in COLUMNS}}
        for line in logged.validation
    ]
    width = -(-len(logged.train) // MOST_LINES) or 1
    for start in range(0, len(logged.train), width):
        lines = logged.train[start : start + width]
        means = {
            key: float(f"{fmean(found):.6g}")
            for key in COLUMNS
            if (found := [line[key] for line in lines if line.get(key) is not None])
        }
        kept.append({"kind": "train", **means, "lines": len(lines)})
    kept.sort(key=lambda line: line["step"])
    return "".join(f"{_compact(line)}\n" for line in kept)


def _copy_plan(source: Path, out: Path, name: str) -> None:
    """With its command as it would be given at the root of the repository: a file that it named is
    what the plan has kept of it."""
    plan = yaml.safe_load(source.read_text("utf-8"))
    words = shlex.split(plan.get("command") or "")
    for place, word in enumerate(words):
        if place and words[place - 1] == "--out":
            words[place] = f"runs/{name}"
        elif word.endswith(".yaml"):
            words[place] = f"results/{name}/{out.name}"
    plan["command"] = shlex.join(words)
    out.write_text(yaml.safe_dump(plan, sort_keys=False, allow_unicode=True), "utf-8")


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{_compact(content)}\n", "utf-8")


def _compact(content: dict[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__)
        return 2
    try:
        out = collect(Path(sys.argv[1]), sys.argv[2])
    except UserError as error:
        print(f"results: {error}", file=sys.stderr)
        return 2
    files = [path for path in out.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    print(f"{out}: {len(list(out.rglob(RECORD)))} runs, {size / 1e3:.0f} kB")
    for path in files:
        for found in sorted(set(re.findall(r"[\"' :=,](/[\w.-]+/[^\"' ,]*)", path.read_text()))):
            print(f"results: {path.relative_to(out)} names {found}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
