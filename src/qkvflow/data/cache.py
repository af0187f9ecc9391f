"""Directories that exist whole or not at all.

A directory is filled under a temporary name, flushed to disk, given a list of its files and their
sizes, and renamed. A process killed at any moment leaves a temporary directory nobody reads; a
file truncated later no longer has the size on the list, and the directory is made again.
"""

import contextlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from qkvflow.errors import UserError

MANIFEST = "complete.json"
_ABANDONED_SECONDS = 24 * 3600.0


def is_complete(directory: Path) -> bool:
    """Whether every file that was there when the directory was finished still has its size."""
    try:
        sizes = json.loads((directory / MANIFEST).read_text())
        return all((directory / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


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
        raise UserError(
            f"cannot write the cache in {directory.parent}: {error.strerror or error}; "
            "free some space or set QKVFLOW_CACHE to another directory"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _finish(temporary: Path) -> None:
    sizes = {}
    for path in sorted(temporary.iterdir()):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        sizes[path.name] = path.stat().st_size
    with (temporary / MANIFEST).open("w") as file:
        json.dump(sizes, file)
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
