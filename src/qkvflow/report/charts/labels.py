"""Where names stand: beside points and above rules, so that none touch.

Places are found once, for both ends of the sizes at which a panel is drawn: a name keeps its
distance from its point while the points move apart.
"""

from collections.abc import Sequence

from qkvflow.report.charts.description import Axis, Label, Rule
from qkvflow.report.charts.scales import share, width_of

FRAMES = ((23.0, 20.5), (27.0, 23.0))
"""The smallest and the largest frame of a small panel, in em."""
ROW_WIDTH = 27.0
"""The frame of a panel of rows on a phone."""

_NEAR = (("start", 0.0), ("end", 0.0), ("start", 0.85), ("end", 0.85), ("start", -0.85))
_NEAR += (("end", -0.85), ("start", 1.7), ("end", 1.7), ("start", -1.7), ("end", -1.7))
_NEAR += (("middle", 1.3), ("middle", -1.3), ("middle", 2.4), ("middle", -2.4))
_AWAY = {"start": 0.75, "end": -0.75, "middle": 0.0}
_BEFORE = {"start": 0.0, "end": 1.0, "middle": 0.5}
Box = tuple[float, float, float, float]


def beside(
    points: Sequence[tuple[float, float, str]],
    x: Axis,
    y: Axis,
    whiskers: Sequence[tuple[float, float, float]] = (),
) -> list[Label | None]:
    """A label for each (x, y, text), lowest first; None where a name would hide its neighbours.

    Names keep clear of points, of each other and, if they can, of `whiskers`: (x, low, high).
    """
    shares = [(share(x, px), share(y, py)) for px, py, _ in points]
    places = [[(px * width, py * height) for width, height in FRAMES] for px, py in shares]
    spots = [[each[frame] for each in places] for frame in range(len(FRAMES))]
    taken = [[(px - 0.5, py - 0.5, px + 0.5, py + 0.5) for px, py in each] for each in spots]
    spans = []
    for width, height in FRAMES:
        lines = [(share(x, at) * width, share(y, a), share(y, b)) for at, a, b in whiskers]
        spans.append([(at - 0.15, a * height, at + 0.15, b * height) for at, a, b in lines])
    found: list[Label | None] = [None] * len(points)
    # A name that finds no place may cross a whisker.
    for clear in (True, False):
        for i in sorted(range(len(points)), key=lambda i: shares[i][1]):
            for anchor, dy in _NEAR if found[i] is None else ():
                label = Label(points[i][2], _AWAY[anchor], dy, anchor)
                boxes = [_box(label, *place) for place in places[i]]
                others = [a + b if clear else a for a, b in zip(taken, spans, strict=True)]
                if all(map(_free, boxes, FRAMES, others)):
                    for box, each in zip(boxes, taken, strict=True):
                        each.append(box)
                    found[i] = label
                    break
    return found


def above(rules: Sequence[Rule], low: float, high: float) -> tuple[int | None, ...]:
    """The level of each vertical rule's name above the frame; None off the axis or without room."""
    ends, levels = [float("-inf")] * 3, dict[int, int]()
    for i in sorted(range(len(rules)), key=lambda i: rules[i].value):
        if not low <= rules[i].value <= high:
            continue
        half = width_of(rules[i].name) / 2
        place = (rules[i].value - low) / (high - low) * ROW_WIDTH
        middle = min(max(place, half), ROW_WIDTH - half)
        free = [level for level, end in enumerate(ends) if middle - half > end + 0.5]
        if free:
            levels[i] = free[0]
            ends[free[0]] = middle + half
    return tuple(levels.get(i) for i in range(len(rules)))


def _box(label: Label, x: float, y: float) -> Box:
    wide = width_of(label.text)
    left = x + label.dx - _BEFORE[label.anchor] * wide
    return left, y + label.dy - 0.55, left + wide, y + label.dy + 0.55


def _free(box: Box, frame: tuple[float, float], others: list[Box]) -> bool:
    inside = box[0] >= -0.3 and box[2] <= frame[0] + 0.6 and box[1] >= 0 and box[3] <= frame[1]
    touched = (a for a in others if a[0] < box[2] and box[0] < a[2] and a[1] < box[3])
    return inside and not any(box[1] < a[3] for a in touched)
