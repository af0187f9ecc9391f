"""Directories that exist whole or not at all.

A directory is filled under a temporary name, flushed to disk, given a list of its files with their
sizes and hashes, and renamed. A process killed at any moment leaves a temporary directory nobody
reads; a file that was cut short or altered later is not what the list says, and the directory is
made again.
"""

import contextlib
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from qkvflow.digests import file_digest
from qkvflow.errors import ResourceError

MANIFEST = "complete.json"
_ABANDONED_SECONDS = 24 * 3600.0


def is_complete(directory: Path) -> bool:
    """Whether every file is as it was when the directory was finished; says so if one is not."""
    if not directory.exists():
        return False
    try:
        files = json.loads((directory / MANIFEST).read_text())
        if all(_is_as(directory / name, described) for name, described in files.items()):
            return True
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        pass
    print(f"qkvflow: {directory} was damaged or altered; making it again", file=sys.stderr)
    return False


def _is_as(path: Path, described: dict[str, int | str] | int) -> bool:
    if isinstance(described, int):  # Lists of earlier versions have sizes alone.
        return path.stat().st_size == described
    return path.stat().st_size == described["bytes"] and _describe(path) == described


def _describe(path: Path) -> dict[str, int | str]:
    return {"bytes": path.stat().st_size, "sha256": file_digest(path)}


@contextlib.contextmanager
def building(directory: Path) -> Iterator[Path]:
    """A temporary directory to fill; it takes its final name when the block ends well."""
    temporary = directory.with_name(f"{directory.name}.{secrets.token_hex(4)}.tmp")
    try:
        _remove_abandoned(directory)
        temporary.mkdir(parents=True)
        yield temporary
        _finish(temporary)
        _install(temporary, directory)
    except OSError as error:
        raise ResourceError(
            f"cannot write the cache in {directory.parent}: {error.strerror or error}; "
            "free some space or set QKVFLOW_CACHE to another directory"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _finish(temporary: Path) -> None:
    files = {}
    for path in sorted(temporary.iterdir()):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        files[path.name] = _describe(path)
    with (temporary / MANIFEST).open("w") as file:
        json.dump(files, file)
        file.flush()
        os.fsync(file.fileno())


def _install(temporary: Path, directory: Path) -> None:
    for _ in range(10):
        try:
            temporary.rename(directory)
            return
        except OSError:
            if is_complete(directory):
                return  # Another process finished the same work first.
            if not directory.exists():
                raise
            shutil.rmtree(directory, ignore_errors=True)
    temporary.rename(directory)


def _remove_abandoned(directory: Path) -> None:
    for path in directory.parent.glob(f"{directory.name}.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
