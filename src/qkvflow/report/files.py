"""The files of an experiment that stand beside its records. All of them may be absent."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from qkvflow.digests import was_altered
from qkvflow.records import Record
from qkvflow.report.content import Sample

# As in `--- step 1000 ---`.
_HEADER = re.compile(r"^[-=#*]{2,} *step *(\d+)\b.{0,60}$")
_LONGEST_SAMPLE = 1500


def read_json(path: Path, missing: list[str], meaning: str) -> Mapping[str, Any]:
    """The object in a file, or an empty one and a line that says what will not be shown."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        missing.append(f"{path.parent.name} has no {path.name}: {meaning}")
        return {}
    except (OSError, ValueError, RecursionError):
        missing.append(f"{path.parent.name}/{path.name} cannot be read: {meaning}")
        return {}
    if not isinstance(content, Mapping) or was_altered(content):
        how = "was altered since it was written" if isinstance(content, Mapping) else "is no object"
        missing.append(f"{path.parent.name}/{path.name} {how}: {meaning}")
        return {}
    return content


def read_plan(path: Path, missing: list[str]) -> tuple[str | None, Mapping[str, Any]]:
    """Text and content of a plan."""
    try:
        text = path.read_text(encoding="utf-8")
        plan = yaml.safe_load(text)
    except FileNotFoundError:
        missing.append(f"{path.parent.name} has no plan.yaml: the protocol is read off the records")
        return None, {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        missing.append(f"{path.parent.name}/plan.yaml cannot be read")
        return None, {}
    return text, plan if isinstance(plan, Mapping) else {}


def last_sample(runs: Sequence[Record]) -> Sample | None:
    """The last text that the first of the runs with any has generated."""
    for run in runs:
        if run.run_dir is None:
            continue
        try:
            text = (run.run_dir / "samples.txt").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        step, sample = _last_part(text)
        if sample.strip():
            return Sample(run.seed, step, sample.strip("\n")[:_LONGEST_SAMPLE])
    return None


def _last_part(text: str) -> tuple[int | None, str]:
    """What follows the last line that names a step; all of it if no line does."""
    lines = text.splitlines()
    for place in range(len(lines) - 1, -1, -1):
        header = _HEADER.match(lines[place])
        if header and any(line.strip() for line in lines[place + 1 :]):
            return int(header[1]), "\n".join(lines[place + 1 :])
    return None, text[-_LONGEST_SAMPLE:]
