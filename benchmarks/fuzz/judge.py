"""What came of a call: an answer, a refusal in one line, or something that must not be."""

import re
from dataclasses import dataclass

MOST_CHARACTERS = 700
GOOD, BAD = ("done", "refused", "stopped"), ("traceback", "abort", "hang", "unclear")
_INTERNALS = re.compile(
    r"object at 0x|<class |NoneType|pybind|Traceback|KeyError|TypeError|AttributeError|ValueError"
    r"|IndexError|unhashable|not subscriptable|unexpected keyword|positional argument|list index"
    r"|has no attribute|invalid literal|jaxlib|XlaRuntime|INTERNAL:|INVALID_ARGUMENT|\('\w+'\)"
    r"|not iterable|out of bounds|codec can't|Errno|zero-size array|broadcast"
)
_BESIDE = re.compile(r"^note: |^\[\d+\] |^\s*$|(it|examples)/s\]|s/it\]")
"""Notes, what each of the processes of a launch has said itself, and the harness' progress."""
_NO_ROOM = re.compile(r"too long|[Nn]ot a directory|Is a directory|denied|symbolic links")
_CODES = {0: "done", 1: "unclear", 2: "refused", 130: "stopped", 143: "stopped"}
_EXPECTED = re.compile(r"^qkvflow: .*(not finite|every run failed|failed and left out)", re.M)
"""Runs that diverged: exit code 1."""


@dataclass(frozen=True)
class Outcome:
    verdict: str
    why: str = ""


def judge(code: int, said: str, *, late: bool) -> Outcome:
    """From the exit code (negative: a signal), stderr, and whether it had to be ended."""
    if "Traceback (most recent call last)" in said:
        lines = [line for line in said.splitlines() if re.match(r"\w[\w.]*(:|$)", line)]
        return Outcome("traceback", lines[-1][:200] if lines else "")
    if late:
        return Outcome("hang", "it had to be ended")
    if code < 0:
        last = said.strip().splitlines()[-1:] or [""]
        return Outcome("abort", f"signal {-code}: {last[0][:200]}")
    verdict = _CODES.get(code, "unclear")
    if verdict == "refused":
        return _refusal(said)
    if verdict == "unclear" and code == 1 and _EXPECTED.search(said):
        return Outcome("done")
    if verdict == "unclear":
        return Outcome("unclear", f"exit code {code}: {said.strip()[-200:]}")
    lines = said.splitlines()
    if len(lines) > 40 or "Warning:" in said:
        return Outcome("unclear", f"{len(lines)} lines on stderr: {lines[-1][:200]}")
    return Outcome(verdict)


def _refusal(said: str) -> Outcome:
    lines = [line for line in said.splitlines() if not _BESIDE.search(line)]
    told = [line for line in lines if line.startswith("qkvflow: ")]
    if len(told) != 1 or len(lines) > 1:
        other = [line for line in lines if line not in told]
        return Outcome("unclear", f"{len(lines)} lines: {' | '.join(other or lines)[:200]}")
    line = told[0]
    if len(line) > MOST_CHARACTERS:
        return Outcome("unclear", f"{len(line)} characters: {line[:120]}")
    # What a plugin raises is its author's to read.
    if (found := _INTERNALS.search(line)) and "plugin" not in line:
        return Outcome("unclear", f"'{found[0]}' in: {line[:200]}")
    if "make room" in line and _NO_ROOM.search(line):
        return Outcome("unclear", f"no room is missing: {line[:200]}")
    if len(line) < 20:
        return Outcome("unclear", f"says too little: {line}")
    return Outcome("refused")
