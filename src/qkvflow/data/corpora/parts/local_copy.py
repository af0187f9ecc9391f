"""A directory that holds a dataset: which files belong to which split, and their format."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from qkvflow.errors import UserError

# The formats of the datasets library, by how file names end.
FORMATS = {
    "parquet": (".parquet",),
    "json": (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".jsonl.zst", ".json.zst"),
    "text": (".txt", ".txt.gz", ".raw", ".tokens"),
}
_SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}


@dataclass(frozen=True)
class LocalCopy:
    """Files of each split; the fingerprint changes when a file does."""

    format: str
    files: dict[str, list[str]]
    fingerprint: list[tuple[str, int, int]]


def find_copy(directory: Path, config: str | None) -> LocalCopy:
    """The files below `directory`, or below its folder named as the configuration if it has one."""
    root = Path(os.path.expanduser(directory))
    if not root.is_dir():
        raise UserError(f"--data-dir {directory} is not a directory; give one with the dataset")
    if config and (root / config).is_dir():
        root = root / config
    paths = sorted(p for p in root.rglob("*") if p.is_file() and not p.name.startswith("."))
    for name, endings in FORMATS.items():
        found = [p for p in paths if p.name.endswith(endings) and p.stat().st_size]
        if name == "json":
            # A dataset's own description is JSON too, and no data.
            found = [p for p in found if p.name not in ("dataset_info.json", "state.json")]
        if found:
            return LocalCopy(
                name,
                _by_split(root, found),
                [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in found],
            )
    raise UserError(f"--data-dir {directory} has no parquet, JSON-lines or text files with data")


def _by_split(root: Path, paths: list[Path]) -> dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    for path in paths:
        files.setdefault(_split_of(path.relative_to(root)), []).append(str(path))
    return files


def _split_of(relative: Path) -> str:
    """A split's name as a word of the path, the file's own name first; otherwise train."""
    for part in reversed(relative.parts):
        words = re.split(r"[^a-z]+", part.lower())
        for split, names in _SPLIT_WORDS.items():
            if any(name in words for name in names):
                return split
    return "train"
