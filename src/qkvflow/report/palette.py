"""One colour per model, the same in every figure, on paper, in the light and in the dark.

Eight colours that stay apart (CIE76 distance of 15 or more) for normal sight, protanopia and
deuteranopia, with a contrast of at least 3 against their background. The ninth model starts over
with another marker and dash.
"""

LIGHT = (
    "#0b6fb8",
    "#dc5f14",
    "#0f9b7c",
    "#a8327a",
    "#5f4400",
    "#3d99d6",
    "#3a2fa0",
    "#101418",
)
DARK = (
    "#4c9be8",
    "#f07c3c",
    "#2fbf96",
    "#d957a8",
    "#f0d060",
    "#9bdcff",
    "#8d7bff",
    "#f4f4f4",
)
PAPER, NIGHT = "#ffffff", "#14171c"
# Text that stands back, and lines behind everything.
SOFT, LINE = "#59616b", "#dfe3e7"

# Matplotlib's names; the page draws the same shapes under the same numbers.
MARKERS = ("o", "s", "^", "D", "v")
DASHES: tuple[tuple[float, tuple[float, ...]], ...] = (
    (0.0, ()),
    (0.0, (5.0, 2.0)),
    (0.0, (1.5, 1.5)),
    (0.0, (6.0, 2.0, 1.5, 2.0)),
    (0.0, (9.0, 3.0)),
)

# Tints of a verdict, of the row against the column.
TINTS = {"better": "#cfe3f5", "worse": "#f9dcc9", "equivalent": "#dfe3e6"}


def colour(index: int) -> str:
    return LIGHT[index % len(LIGHT)]


def marker(index: int) -> str:
    return MARKERS[index // len(LIGHT) % len(MARKERS)]


def dash(index: int) -> tuple[float, tuple[float, ...]]:
    return DASHES[index // len(LIGHT) % len(DASHES)]


# From t = 0 to t = 1, to be seen on paper and in the dark.
DEPTH = ("#3366d6", "#8a4fc8", "#c8468c", "#e8663c", "#e0a020")
# Below and above a middle that has the colour of the background.
LESS, MORE = "#2f6fd0", "#e8762c"
