"""The run directory: files that hold either their old content or all of the new.

A process can be killed at any moment. `config.yaml` and `record.json` are replaced whole;
`metrics.jsonl` is appended to by whole lines, and a torn last line is cut off when it is opened
again. A lock keeps two processes out of one run.
"""

import contextlib
import fcntl
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qkvflow.digests import file_digest, was_altered
from qkvflow.errors import ResourceError, UserError
from qkvflow.files import to_json, write_whole
from qkvflow.runs.config_files import read_yaml

CONFIG, METRICS, RECORD, SAMPLES = "config.yaml", "metrics.jsonl", "record.json", "samples.txt"
TOKENIZER, CHECKPOINTS, FIGURE = "tokenizer.json", "checkpoints", "loss.png"
_LOCK, _STOP = ".lock", ".stop"
_HIDDEN = (_LOCK, _STOP, ".tracker.json", ".finetune.json")
"""What a run may leave whose names begin with a dot."""
_TAIL_BYTES = 4096
_ROOM = re.compile("No space|quota|File too large|are free")


@contextlib.contextmanager
def writing(directory: Path, *, resumable: bool = True) -> Iterator[None]:
    """Turns a failing disk or directory into the line the user reads."""
    try:
        yield
    except OSError as error:
        raise cannot_write(directory, error.strerror or str(error), resumable) from error


def cannot_write(directory: Path, why: str, resumable: bool = True) -> UserError:
    first = "make room" if _ROOM.search(why) else "check the directory and its rights"
    again = f"run '{resume_command(directory)}'" if resumable else "choose another --out"
    return ResourceError(
        f"cannot write {directory}: {why}; {first} {'and' if resumable else 'or'} {again}"
    )


def resume_command(directory: Path) -> str:
    """What to type to go on with a run."""
    return f"qkvflow resume {shlex.quote(str(directory))}"


def create(directory: Path) -> None:
    """A fresh run directory. One that holds anything is refused, and left as it is."""
    if (directory / CONFIG).exists():
        raise UserError(
            f"{directory} holds a run already; continue it with '{resume_command(directory)}' "
            "or choose another --out"
        )
    with writing(directory, resumable=False):
        directory.mkdir(parents=True, exist_ok=True)
        # What a process killed within its first moments left behind begins with a dot.
        if any(not path.name.startswith(".") for path in directory.iterdir()):
            raise UserError(f"{directory} is not empty; choose another --out")


def remove_unbegun(directory: Path) -> None:
    """Remove what a run that could not begin has left, so that the same command can be tried
    again. One that has a step to show stays."""
    metrics, checkpoints = directory / METRICS, directory / CHECKPOINTS
    begun = metrics.exists() and metrics.stat().st_size > 0
    if begun or any(path.name.isdecimal() for path in checkpoints.glob("*")):
        return
    # The directory may have been there before, with files of others that begin with a dot (see
    # `create`); the rest is this run's.
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            if path.is_dir() and not path.name.startswith("."):
                shutil.rmtree(path, ignore_errors=True)
            elif not path.name.startswith(".") or path.name in _HIDDEN:
                path.unlink()
        directory.rmdir()


@contextlib.contextmanager
def locked(directory: Path, patience: float = 0.0) -> Iterator[None]:
    """Only one process works in a run directory; the lock dies with its process.

    Another one is waited for as long as `patience` says, in seconds.
    """
    with writing(directory, resumable=False):
        handle = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() < deadline:
                    time.sleep(0.1)
                    continue
                raise ResourceError(
                    f"another process is working in {directory}; let it finish"
                ) from None
        yield
    finally:
        os.close(handle)


def ask_to_stop(directory: Path) -> None:
    """The process that works in a run directory, wherever it is, saves the run and leaves it."""
    (directory / _STOP).touch()


def asked_to_stop(directory: Path) -> bool:
    return (directory / _STOP).exists()


def forget_stop(directory: Path) -> None:
    (directory / _STOP).unlink(missing_ok=True)


class MetricsWriter:
    """`metrics.jsonl`, open for appending."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def append(self, line: Mapping[str, Any]) -> None:
        self._file.write(to_json(line) + "\n")
        self._file.flush()

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        # On a full disk the rest of a line cannot be written now either; it is cut off later.
        with contextlib.suppress(OSError):
            self._file.close()


def read_lines(path: Path, last_step: int | None = None) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl` that are whole and say a step, up to a step."""
    lines = []
    try:
        text = path.read_text("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    for raw in text.split("\n"):
        try:
            line = json.loads(raw)
        except ValueError:
            continue
        # Of an altered file others may remain that are JSON; who resumes is told of it.
        whole = isinstance(line, dict) and isinstance(line.get("step"), int)
        whole = whole and isinstance(line.get("loss"), float | int | None)
        if whole and (last_step is None or line["step"] <= last_step):
            lines.append(line)
    return lines


def last_line(path: Path) -> dict[str, Any] | None:
    """The last whole line of `metrics.jsonl`, which may be growing."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return None
    for raw in reversed(text.split("\n")[:-1]):
        try:
            line = json.loads(raw)
        except ValueError:
            continue
        return line if isinstance(line, dict) else None
    return None


def describe_growing(directory: Path) -> dict[str, Any]:
    """Sizes and hashes of the files a run appends to."""
    found = [name for name in (METRICS, SAMPLES) if (directory / name).exists()]
    sizes = {name: (directory / name).stat().st_size for name in found}
    return {
        name: {"bytes": size, "sha256": file_digest(directory / name, size)}
        for name, size in sizes.items()
    }


def altered(directory: Path, described: Mapping[str, Any]) -> list[str]:
    """A line for each file that does not begin as it was described."""
    notes = []
    for name, was in described.items():
        path = directory / name
        have = path.stat().st_size if path.exists() else -1
        if have < was["bytes"] or file_digest(path, was["bytes"]) != was["sha256"]:
            notes.append(
                f"{path} {'is gone' if have < 0 else 'was altered'} since it was written: what it "
                "says of the steps before is not to be trusted; restore it from a copy or go on "
                "without"
            )
    return notes


def cut_back(directory: Path, step: int, samples_bytes: int) -> list[dict[str, Any]]:
    """Take a run's files back to a step: what came later will be written again."""
    path = directory / METRICS
    lines = read_lines(path, step)
    if path.exists() or lines:
        write_whole(path, "".join(to_json(line) + "\n" for line in lines))
    samples = directory / SAMPLES
    if samples.exists() and samples.stat().st_size > samples_bytes:
        os.truncate(samples, samples_bytes)
    (directory / RECORD).unlink(missing_ok=True)
    return lines


def read_run_config(directory: Path) -> dict[str, Any]:
    """The configuration of a run directory, as written."""
    if not (directory / CONFIG).exists():
        what = "is not a run directory" if directory.exists() else "does not exist"
        raise UserError(f"{directory} {what}; give the --out of a 'qkvflow train'")
    return read_yaml(directory / CONFIG)


def read_record(directory: Path) -> dict[str, Any] | None:
    """`record.json`, or None if the run has not ended or this is no record, or an altered one."""
    try:
        content = json.loads((directory / RECORD).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    whole = isinstance(content, dict) and all(
        isinstance(content.get(name), kind) for name, kind in (("status", str), ("schema", int))
    )
    whole = whole and not was_altered(content)
    if whole and content["status"] == "finished":
        whole = all(isinstance(content.get(name), dict) for name in ("data", "losses", "budget"))
    return content if whole else None
