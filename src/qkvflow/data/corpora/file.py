"""`file:`: the user's own text.

    file:PATH                               a file, a directory or a glob
    file:PATH?split=0.9,0.1                 shares of train, validation and, if three, test
    file:train=A,validation=B,test=C        each split by name; test may be left out
    file:train=A,validation=B[:0.5],test=B[0.5:]    parts of a file, as fractions of its length

One file is divided by contiguous position, several files by file. Of a directory or a glob,
hidden files, empty files and files with a zero byte near the start (not text) are left out.
"""

import glob
import re
from itertools import combinations
from pathlib import Path
from typing import ClassVar

from qkvflow.data.corpora.base import CorpusKind, Spec, refuse_data_dir
from qkvflow.data.corpora.parts.division import (
    DEFAULT_SHARES,
    divide_files,
    divide_positions,
    whole_characters,
)
from qkvflow.data.corpus import SPLITS, Corpus
from qkvflow.data.split import FileSplit, Piece
from qkvflow.errors import UserError
from qkvflow.zoo.registry import CORPORA

_NAMED = re.compile(r"(?:^|,)(train|validation|test)=")
_RANGE = re.compile(r"^(?P<path>.*)\[(?P<start>[\d.]*):(?P<stop>[\d.]*)\]$", re.DOTALL)
_SNIFFED_BYTES = 8192


@CORPORA.register("file")
class Files(CorpusKind):
    """Text files of the user's."""

    usages: ClassVar[tuple[str, ...]] = ("file:PATH",)

    def accepts(self, spec: Spec) -> bool:
        return spec.kind == "file"

    def load(self, spec: Spec, *, data_dir: Path | None, seed: int) -> Corpus:
        refuse_data_dir(spec, data_dir)
        spec.allow(("split",))
        if not spec.body:
            raise UserError("file: names no file; write file:PATH")
        if _NAMED.match(spec.body):
            return self._named(spec)
        shares = spec.fractions(DEFAULT_SHARES)
        pieces = find_pieces(spec.body)
        if len(pieces) == 1:
            return Corpus(spec.text, *divide_positions(pieces[0], shares))
        wanted = sum(share > 0 for share in shares)
        if len(pieces) < wanted:
            raise UserError(
                f"{spec.body} has {len(pieces)} text files, too few for {wanted} splits of whole "
                "files; add '?split=0.9,0.1' or name them, file:train=A,validation=B"
            )
        parts = divide_files([p.name for p in pieces], [p.stop for p in pieces], shares)
        train, validation, test = (
            FileSplit([p for p, part in zip(pieces, parts, strict=True) if part == index])
            for index in range(3)
        )
        return Corpus(spec.text, train, validation, test)

    def _named(self, spec: Spec) -> Corpus:
        if spec.options:
            raise UserError(f"'{spec.text}' names its splits already; leave '?split' out")
        fields = _NAMED.split(spec.body)[1:]
        pieces: dict[str, list[Piece]] = {}
        for name, path in zip(fields[::2], fields[1::2], strict=True):
            if name in pieces:
                raise UserError(f"'{spec.text}' names {name} twice; name each split once")
            pieces[name] = find_pieces(path)
        for name in ("train", "validation"):
            if name not in pieces:
                raise UserError(f"'{spec.text}' names no {name} split; add {name}=PATH")
        for one, other in combinations(pieces, 2):
            _refuse_overlap(one, pieces[one], other, pieces[other])
        train, validation, test = (FileSplit(pieces.get(name, [])) for name in SPLITS)
        return Corpus(spec.text, train, validation, test)


def find_pieces(text: str) -> list[Piece]:
    """The text files a path, directory or glob names, in sorted order."""
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise UserError(f"{text} names the home of a user who is not known; give a path") from None
    if path.is_file():
        size = path.stat().st_size
        if size == 0:
            raise UserError(f"{text} is empty; give a file with text in it")
        return [Piece(path, text, 0, size)]
    if path.is_dir():
        pieces = _text_files(path, sorted(path.rglob("*")))
        if not pieces:
            raise UserError(f"directory {text} has no text files; put some there or name a file")
        return pieces
    if match := _RANGE.match(text):
        return [_part(text, match)]
    if glob.has_magic(text):
        found = sorted(Path(p) for p in glob.glob(str(path), recursive=True))
        pieces = _text_files(None, found)
        if not pieces:
            raise UserError(f"no text files match {text}; check the pattern (and quote it)")
        return pieces
    raise UserError(f"no file {text}; check the path (now in {Path.cwd()})")


def _text_files(root: Path | None, paths: list[Path]) -> list[Piece]:
    pieces = []
    for path in paths:
        relative = path.relative_to(root) if root else path
        below = relative.parts if root else relative.parts[-1:]
        if any(part.startswith(".") or part == "__pycache__" for part in below):
            continue
        if path.is_file() and _looks_like_text(path):
            pieces.append(Piece(path, relative.as_posix(), 0, path.stat().st_size))
    return pieces


def _looks_like_text(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            start = file.read(_SNIFFED_BYTES)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; check the file") from error
    return bool(start) and b"\0" not in start


def _part(text: str, match: re.Match[str]) -> Piece:
    whole = find_pieces(match["path"])
    if len(whole) != 1:
        raise UserError(f"{text} takes a part of several files; a part is of one file")
    try:
        start = float(match["start"] or 0.0)
        stop = float(match["stop"] or 1.0)
    except ValueError:
        start, stop = 1.0, 0.0
    if not 0 <= start < stop <= 1:
        raise UserError(f"{text} is not a part of a file; write e.g. {match['path']}[0.5:]")
    piece = whole[0]
    first, last = (whole_characters(piece, int(piece.stop * f + 1e-6)) for f in (start, stop))
    if first == last:
        raise UserError(f"{text} is empty: the file has {piece.stop} bytes; take a larger part")
    return Piece(piece.path, piece.name, first, last)


def _refuse_overlap(name: str, pieces: list[Piece], other: str, others: list[Piece]) -> None:
    mine = {piece.path.resolve(): piece for piece in pieces}
    for piece in others:
        same = mine.get(piece.path.resolve())
        if same and same.start < piece.stop and piece.start < same.stop:
            raise UserError(
                f"{piece.name} is in both {name} and {other}; splits never share text: take "
                f"parts such as {piece.name}[:0.5] and {piece.name}[0.5:]"
            )
