"""What a compiled program computes and exchanges, read from its text.

XLA's own cost analysis counts the body of a loop once. Here every computation is counted as often
as it runs: a loop over depth, over pieces of the loss or over parts of the batch has a known number
of trips, written beside it. Attention's loop over pairs of blocks below the diagonal has as many as
its name says; any other loop without a number (the steps of a program call) counts once.

    products     2 x (elements of the result) x (length of the contraction), over matrix products.
                 Elementwise work is left out: it is small, and hidden behind memory.
    exchanged    bytes one device sends in a ring of n: (n - 1) / n of the array for all-gather
                 (of its result), reduce-scatter (of its operand) and all-to-all, twice that for
                 all-reduce, and the whole of it for a permutation

The text is that of one device of a mesh, and so are the numbers.
"""

import dataclasses
import math
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from qkvflow.blocks.kernels.attention import BELOW_DIAGONAL

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.+?) ([a-z][a-z0-9\-]*)\(([^()]*)\)(.*)$")
_ARRAY = re.compile(r"\b(pred|bf16|[a-z]\d+\w*)\[([\d,]*)\]")
_CALLS = re.compile(r"(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"(?:branch_computations|called_computations)=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CONTRACTING = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
# The devices of a collective: {{0,1},{2,3}}, [2,4]<=[8], or mesh['x'=2,'y'=4] {'y'}, where an
# axis may be a part of one, 'y':(2)2. None at all means all of them.
_LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_IOTA = re.compile(r"replica_groups=\[\d+,(\d+)\]")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}")
_MESH_AXIS = re.compile(r"'([^']*)'=(\d+)")
_GROUP_AXIS = re.compile(r"'([^']*)'(?::\(\d+\)(\d+))?")
_PARTITIONS = re.compile(r"num_partitions=(\d+)")
_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)


class Work(NamedTuple):
    """Of one device, in one run of a program."""

    products: int = 0
    """Floating-point operations in matrix products."""
    exchanged: int = 0
    """Bytes sent to other devices."""

    def times(self, count: int) -> "Work":
        return Work(self.products * count, self.exchanged * count)

    def plus(self, other: "Work") -> "Work":
        return Work(self.products + other.products, self.exchanged + other.exchanged)


@dataclasses.dataclass(frozen=True)
class _Instruction:
    shape: str
    operation: str
    operands: tuple[str, ...]
    rest: str


def count_work(text: str) -> Work:
    """The work of a program's entry computation, from `compiled.as_text()`."""
    computations, entry = _parse(text)
    partitions = _PARTITIONS.search(text)
    devices = int(partitions[1]) if partitions else 1
    shapes = {name: each.shape for body in computations.values() for name, each in body.items()}

    @cache
    def work(computation: str, around: int) -> Work:
        """Of one run of a computation, within a loop of so many trips."""
        total = Work()
        for each in computations.get(computation, {}).values():
            total = total.plus(_own(each, shapes, devices))
            known = _TRIPS.search(each.rest) if each.operation == "while" else None
            trips = int(known[1]) if known else 1
            called = [work(name, trips if known else around) for name in _called(each)]
            inside = Work(*(sum(parts) for parts in zip(*called, strict=True)))
            if each.operation == "conditional":
                # One of its branches runs, whichever: they count by their mean. One without any
                # work stands beside an update that is left out, which hardly ever happens.
                busy = sum(branch != Work() for branch in called)
                inside = Work(*(part // max(1, busy) for part in inside))
            if each.operation == "while" and not known and BELOW_DIAGONAL in each.rest:
                inside = Work(*(part * (around - 1) // 2 for part in inside))
            total = total.plus(inside.times(trips))
        return total

    return work(entry, 1)


def _parse(text: str) -> tuple[dict[str, dict[str, _Instruction]], str]:
    computations: dict[str, dict[str, _Instruction]] = {}
    current: dict[str, _Instruction] = {}
    entry = ""
    for line in text.splitlines():
        if (head := _COMPUTATION.match(line)) is not None:
            current = computations.setdefault(head[2], {})
            entry = head[2] if head[1] else entry
        elif (found := _INSTRUCTION.match(line)) is not None:
            operands = tuple(re.findall(r"%([\w.\-]+)", found[4]))
            current[found[1]] = _Instruction(found[2], found[3], operands, found[5])
    return computations, entry


def _called(each: _Instruction) -> Iterator[str]:
    yield from _CALLS.findall(each.rest)
    for names in _BRANCHES.findall(each.rest):
        yield from re.findall(r"%?([\w.\-]+)", names)


def _own(each: _Instruction, shapes: dict[str, str], devices: int) -> Work:
    if each.operation == "dot":
        (_, left), (_, result) = _arrays(shapes[each.operands[0]])[0], _arrays(each.shape)[0]
        along = _CONTRACTING.search(each.rest)
        contracted = [left[int(axis)] for axis in along[1].split(",") if axis] if along else []
        return Work(products=2 * math.prod(result) * math.prod(contracted))
    # A collective that runs beside other work is begun and ended; what ends it moves nothing.
    kind = each.operation.removesuffix("-start")
    if kind in _COLLECTIVES:
        whole = sum(_bytes(shapes[name]) for name in each.operands if name in shapes)
        return Work(exchanged=_sent(kind, whole, _group_size(each.rest, devices)))
    return Work()


def _sent(kind: str, operand_bytes: int, devices: int) -> int:
    """Bytes one device sends, from the bytes of what it puts in."""
    if kind == "collective-permute":
        return operand_bytes
    if kind == "all-gather":
        return operand_bytes * (devices - 1)
    share = operand_bytes * (devices - 1) // devices
    return 2 * share if kind == "all-reduce" else share


def _group_size(rest: str, devices: int) -> int:
    if (listed := _LISTED.search(rest)) is not None:
        return len(listed[1].split(","))
    if (iota := _IOTA.search(rest)) is not None:
        return int(iota[1])
    if (mesh := _MESH.search(rest)) is not None:
        sizes = dict(_MESH_AXIS.findall(mesh[1]))
        return math.prod(int(part or sizes[name]) for name, part in _GROUP_AXIS.findall(mesh[2]))
    return devices


def _arrays(shape: str) -> list[tuple[str, list[int]]]:
    """Element type and lengths of an array, or of each array of a tuple."""
    return [
        (kind, [int(n) for n in sizes.split(",") if n]) for kind, sizes in _ARRAY.findall(shape)
    ]


def _bytes(shape: str) -> int:
    return sum(_width(kind) * math.prod(sizes) for kind, sizes in _arrays(shape))


def _width(kind: str) -> int:
    """Bytes of an element: f32, bf16, s8, pred, f8e4m3fn, c64."""
    if kind == "pred":
        return 1
    found = re.search(r"\d+", kind)
    return max(1, int(found[0]) // 8) if found else 4
