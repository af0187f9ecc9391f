"""One odd call of the command line: a call that works, and one to three things wrong with it."""

import argparse
import dataclasses
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fuzz.odd import FLOATS, HINTS, INTEGERS, NUMBERS, TEXTS, WHOLE, damage
from qkvflow.cli import VERBS, parser_of
from qkvflow.runs.sections import SECTIONS
from qkvflow.zoo.config import ModelConfig

SMALL = (
    *("--steps", "2", "--data.tokenizer", "char", "--model.d_model", "8", "--model.num_heads", "1"),
    *("--model.num_steps", "1", "--model.context", "8", "--train.batch_size", "2"),
    *("--train.eval_tokens", "16", "--optim.warmup", "1", "--checkpoint.every", "2"),
)
# {run}, {unfinished}, {export}, {adapted} and {experiment} are copied for a call that names them.
CALLS: dict[str, tuple[tuple[str, ...], ...]] = {
    verb: tuple(tuple(" ".join(SMALL).join(line.split("TINY")).split()) for line in lines)
    for verb, lines in {
        "models": ("standard", "tong --json"),
        "compare": (
            "--out {out} --data {corpus} --models standard --dry-run TINY",
            "--out {out} --config {plan} --dry-run",
        ),
        "tune": ("--out {out} --config {config} --search optim.lr=0.1,0.2 --workers 1",),
        "scaling-law": (
            "--out {out} --config {config} --widths 8,16 --depths 1,2 --tokens 64,128 --dry-run",
        ),
        "coordinate-check": ("--config {config} --widths 8,16 --updates 1",),
        "plan": ("--data {corpus} --mesh data=100000 TINY", "--config {config}"),
        "train": ("--out {out} --data {corpus} TINY", "--out {out} --config {config}"),
        "resume": ("{unfinished}", "{run}"),
        "launch": ("-n 2 -- models",),
        "import": ("{pretrained} --out {out}", "{pretrained} --out {out} --context 4"),
        "convert": (
            "{run} --out {out} --field low-rank --rank 1 --max-tokens 16",
            "{export} --out {out} --field gated --data {corpus} --max-tokens 16",
        ),
        "finetune": ("{run} --out {out} --data {corpus} --method lora --steps 2 --batch-size 2",),
        "eval": ("{run} --max-tokens 16", "{export} --data {corpus}"),
        "lm-eval": (
            "{run} --tasks absent --include-path {out}",
            "{run} --tasks choice --include-path {tasks} --batch-size 2 --out {out}",
            "{export} --tasks words --include-path {tasks} --limit 1",
        ),
        "sweep-depth": ("{run} --num-steps 1 --schemes euler --max-tokens 16",),
        "generate": ("{run} --tokens 2 --prompt a", "{export} --tokens 2 --prompts {text}"),
        "analyze": ("{run} --text a --only weights", "{export} --text a --out {out}"),
        "serve": ("{run} --port 0",),
        "report": ("{experiment} --out {out}",),
        "export": ("{run} --to {out}", "{run} --to {out} --adapter {adapter}"),
    }.items()
}
"""Calls that work or come close; any other verb is called with what its parser asks for."""
WEIGHTS = {
    "train": 6,
    "compare": 4,
    "finetune": 3,
    "eval": 3,
    "generate": 3,
    "lm-eval": 1,
    "plan": 1,
    "serve": 1,
    "tune": 1,
}
FIELDS = {
    f"{section}.{each.name}": str(each.type)
    for section, kind in {"model": ModelConfig, **SECTIONS}.items()
    for each in dataclasses.fields(kind)
}
FILES = ("--config", "--tokenizer", "--plugin", "--data", "--prompts", "--adapter")
LASTING = ("serve",)
"""Verbs that are meant to go on until they are stopped."""


@dataclass
class Call:
    verb: str
    words: list[str]
    folder: Path
    notes: list[str] = field(default_factory=list)
    """What was done to files."""


def actions(verb: str) -> list[argparse.Action]:
    """What the parser of a verb takes."""
    return [action for action in parser_of(verb)._actions if action.nargs != 0 or action.const]


class Caller:
    """Makes calls from a seed: the same seed and number give the same call."""

    def __init__(self, seed: int, material: Path, places: list[str], known: list[str]) -> None:
        self._seed, self._material = seed, material
        self._places, self._names = places, known
        self._actions = {verb: actions(verb) for verb in VERBS}
        self._weights = [WEIGHTS.get(verb, 2) for verb in VERBS]

    def _rng(self, number: int) -> random.Random:
        return random.Random(f"{self._seed} {number}")

    def verb_of(self, number: int, rng: random.Random | None = None) -> str:
        return (rng or self._rng(number)).choices(list(VERBS), self._weights)[0]

    def make(self, number: int, folder: Path) -> Call:
        rng = self._rng(number)
        folder.mkdir(parents=True)
        verb = self.verb_of(number, rng)
        call = Call(verb, list(rng.choice(CALLS.get(verb, ((),)))) or self._needed(verb), folder)
        faults: list[Callable[[Call, random.Random], None]] = [self._option] * 10
        faults += [self._word, *[self._files] * 4, *[self._file_option] * 2]
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            rng.choice(faults)(call, rng)
        self._fill(call, rng)
        call.words = [verb, *call.words]
        return call

    def _needed(self, verb: str) -> list[str]:
        words = []
        for action in self._actions[verb]:
            if not action.option_strings:
                words.append("{run}")
            elif action.required:
                words += [action.option_strings[0], "{out}"]
        return words

    def _value(self, rng: random.Random, kind: str = "") -> str:
        """Mostly of the kind that is asked for: what is told apart by its type is soon refused."""
        if rng.random() < 0.8:
            if "int" in kind:
                return rng.choice(INTEGERS)
            if "float" in kind:
                return rng.choice(FLOATS)
            if "bool" in kind:
                return rng.choice(("true", "false"))
        kinds = (NUMBERS, TEXTS, HINTS, self._names, self._places)
        return rng.choice(rng.choices(kinds, (3, 3, 4, 4, 2))[0])

    def _option(self, call: Call, rng: random.Random) -> None:
        """An option with an odd value, in place of the one that was there."""
        options = [action for action in self._actions[call.verb] if action.option_strings]
        # A verb's own options are few beside the fields of a configuration.
        own = [each for each in options if "." not in each.option_strings[0]]
        action = rng.choice(own if rng.random() < 0.5 else options)
        name = action.option_strings[-1]
        while name in call.words:
            at = call.words.index(name)
            del call.words[at : at + (1 if action.nargs == 0 else 2)]
        kind = FIELDS.get(str(action.const), getattr(action.type, "__name__", ""))
        value = [] if action.nargs == 0 and rng.random() < 0.95 else [self._value(rng, kind)]
        call.words += [f"{name}={value[0]}"] if value and rng.random() < 0.2 else [name, *value]

    def _word(self, call: Call, rng: random.Random) -> None:
        """A word less, one more, or another."""
        at = rng.randrange(len(call.words) + 1)
        how = rng.choice(("drop", "add", "other", "twice"))
        if how == "add" or at == len(call.words):
            call.words.insert(at, self._value(rng))
        elif how == "drop":
            del call.words[at]
        elif how == "other":
            call.words[at] = self._value(rng)
        else:
            call.words.insert(at, call.words[at])

    def _file_option(self, call: Call, rng: random.Random) -> None:
        """A whole odd file for an option that takes one."""
        path = call.folder / rng.choice(("odd.json", "odd.py", "odd.yaml", "odd.txt"))
        path.write_bytes(rng.choice(WHOLE)(rng))
        known = {name for action in self._actions[call.verb] for name in action.option_strings}
        given = rng.choice([*(name for name in FILES if name in known), "dir"])
        if given == "dir" and call.words:
            call.words[0] = str(path)
        else:
            call.words += [given, f"file:{path}" if given == "--data" else str(path)]

    def _files(self, call: Call, rng: random.Random) -> None:
        """Faults in files that the call reads; done when they are copied."""
        call.notes.append("damage")

    def _fill(self, call: Call, rng: random.Random) -> None:
        """Put copies of what a call names in its folder, and faults into them."""
        copied: list[Path] = []
        for index, word in enumerate(call.words):
            for source in sorted(self._material.iterdir()):
                name = "{" + source.stem + "}"
                if name not in word:
                    continue
                target = call.folder / source.name
                if not target.exists():
                    copy = shutil.copytree if source.is_dir() else shutil.copy
                    copied.append(Path(copy(source, target)))
                word = word.replace(name, str(target))
            corpus = f"file:{self._material / 'text.txt'}?split=0.8,0.1,0.1"
            word = word.replace("{corpus}", corpus).replace("{out}", str(call.folder / "out"))
            call.words[index] = word
        for position, _ in enumerate(call.notes):
            found = [p for top in copied for p in [top, *top.rglob("*")] if p.is_file()]
            if not found:
                call.notes = call.notes[:position]
                return
            path = rng.choice(found)
            # Small files are few among the pieces of checkpoints.
            if "checkpoints" in path.parts and rng.random() < 0.7:
                path = rng.choice([p for p in found if "checkpoints" not in p.parts] or found)
            if rng.random() < 0.1:
                path.unlink()
            else:
                path.write_bytes(damage(path.read_bytes(), rng))
            call.notes[position] = f"altered {path.relative_to(call.folder)}"
