"""Dividing whole documents, or the positions of one file, among train, validation and test."""

import hashlib
from collections.abc import Sequence
from itertools import pairwise

from qkvflow.data.split import FileSplit, Piece
from qkvflow.data.tokenizers.base import character_boundary

Shares = tuple[float, float, float]
DEFAULT_SHARES: Shares = (0.9, 0.05, 0.05)


def share_of(content: bytes, shares: Shares) -> int:
    """0, 1 or 2 for train, validation or test, by hash: equal contents go the same way."""
    point = int.from_bytes(hashlib.sha256(content).digest()[:8], "little") / 2**64
    return 0 if point < shares[0] else 1 if point < shares[0] + shares[1] or not shares[2] else 2


def divide_files(names: Sequence[str], sizes: Sequence[int], shares: Shares) -> list[int]:
    """The split of each file: 0, 1 or 2.

    By the hash of its name alone wherever that leaves each held-out split within a factor of two
    of its share, so that adding files never moves another from train to test. A few files, or one
    large one, are instead dealt out in the order of those hashes to whichever split lacks most,
    and every split gets at least one.
    """
    total = sum(sizes)
    by_name = [share_of(name.encode(), shares) for name in names]
    if all(
        share * total / 2
        <= sum(s for s, k in zip(sizes, by_name, strict=True) if k == part)
        <= share * total * 2
        for part, share in enumerate(shares)
    ):
        return by_name
    order = sorted(range(len(names)), key=lambda i: hashlib.sha256(names[i].encode()).digest())
    dealt, held, seen = [0] * len(names), [0, 0, 0], 0
    for index in order:
        seen += sizes[index]
        wanted = [share * seen for share in shares]
        lack = [w - h if w else -1.0 for w, h in zip(wanted, held, strict=True)]
        dealt[index] = max(range(3), key=lambda part: lack[part])
        held[dealt[index]] += sizes[index]
    for part, share in enumerate(shares):
        if share and part not in dealt:
            most = max(range(3), key=lambda other: dealt.count(other))
            candidates = [i for i in order if dealt[i] == most]
            dealt[min(candidates, key=lambda i: sizes[i])] = part
    return dealt


def divide_positions(piece: Piece, shares: Shares) -> tuple[FileSplit, FileSplit, FileSplit]:
    """Contiguous parts of one file, in order; no character is cut in two."""
    length = piece.stop - piece.start
    marks = [0.0, shares[0], shares[0] + shares[1], 1.0]
    cuts = [piece.start + whole_characters(piece, int(length * mark + 1e-6)) for mark in marks[:3]]
    cuts.append(piece.stop)
    if not shares[2]:
        cuts[2] = piece.stop
    parts = [Piece(piece.path, piece.name, start, stop) for start, stop in pairwise(cuts)]
    train, validation, test = (FileSplit([p] if p.stop > p.start else []) for p in parts)
    return train, validation, test


def whole_characters(piece: Piece, position: int) -> int:
    """`position`, moved back to the start of the character it lies in."""
    length = piece.stop - piece.start
    if position in (0, length):
        return position
    first = max(position - 4, 0)
    with piece.path.open("rb") as file:
        file.seek(piece.start + first)
        data = file.read(position - first + 1)
    boundary = character_boundary(data)
    # Without any boundary in reach the bytes are not UTF-8 and may be cut anywhere.
    return first + boundary if 0 < boundary < len(data) else position
