"""Odd values and odd files: what people, scripts and broken disks have typed and left."""

import itertools
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from qkvflow.zoo.registry import REGISTRIES

_DIGITS = "9" * 400
NUMBERS = (
    *("0", "1", "2", "3", "-1", "7", "1e0", "1.5", "0.1", "-0.0", "1e-3", "1e-30", "1e9", "1e18"),
    *("1e300", "1e999", "-1e300", "nan", "inf", "-inf", "0x10", "1_000", "١٢", "1,2", "2**3"),
    *(_DIGITS, f"-{_DIGITS}", f"0.{_DIGITS}", "4294967296", "9223372036854775807", "1e", "e", "½"),
)
INTEGERS = (
    *("0", "1", "1", "2", "2", "3", "4", "5", "7", "12", "-1", "-3", "64"),
    *("2147483648", "4294967296", "9223372036854775807", _DIGITS),
)
FLOATS = (
    "0",
    "1",
    "0.5",
    "0.1",
    "1e-3",
    "2.5",
    "-1",
    "1e-30",
    "1e300",
    "nan",
    "inf",
    "-inf",
    "1e9",
)
TEXTS = (
    *("", " ", "\n", "none", "None", "null", "~", "true", "yes", "off", "x", "[]", "{}", "[1", "-"),
    *("--", "=", ",", ",,", ":", "a=b", "a:b", "@", "*", "**", "?", "%", "%s", "%d%n", "{0}"),
    *("[red]x[/red]", "[/red]", "[link=x]", "\x1b[31m", "\\", "'", '"', "`id`", "$(id)", "\t"),
    *("\u202ex", "é", "é", "😀", "\udced\udca0", "x" * 300, "y" * 20_000, "a/b", "../..", "."),
    *("!!int abc", "!!python/object:os.system x", "2001-99-99", "2001-01-01", "&a *a", "<b>"),
    *("NaN", "~nosuchuser/x", "$HOME", "C:\\x", "a\0b", "-h", "--json", "é" * 200, "1:2:3"),
)
HINTS = (
    *("lora", "gates", "full", "interpolate", "repeat", "keep", "best", "last", "all", "lr"),
    *("lr=1e-3", "lr=x", "params", "flops", "standard:d_model=8", "data=1", "data=2", "fsdp=0"),
    *("entropy=0.5", "change=x", "entropy=nan", "0.5,2,adaptive", "1,2,4", "uniform(1,3)", "1-3"),
    *("poisson:4", "byte", "char", "bpe:300", "bpe:0", "bpe:-1", "bpe:1e9", "source:markov"),
    *("source:markov?order=99", "source:recall", "source:", "stdlib?x=1", "hf:", "hf:x/y", "file:"),
    *("float32", "bfloat16", "float8", "attention+mlp", "mlp", "attention+attention", "cosine"),
    *("127.0.0.1:1", "localhost", "auto", "quick", "ablation", "tensor=2,tensor=2", "a100-80g"),
    *("train", "test", "validation", "evaluations", "constant", "wsd", "sgd", "muon", "euler"),
)


def names() -> list[str]:
    """Members of all registries, models among them: words that are right somewhere."""
    return sorted({name for registry in REGISTRIES for name in registry})


NODES: tuple[Any, ...] = (
    *(None, True, 0, -1, 3, 1.5, float("nan"), float("inf"), 10**30, "", "x", "x" * 5000, [], {}),
    *([[]], [None], {"a": 1}, {"": None}, [1, "a", {}], "2001-01-01", -(1 << 63), 1e300, "[red]"),
)


def damage(content: bytes, rng: random.Random) -> bytes:
    """Bytes after one fault."""
    kind = rng.choice(("flip", "cut", "zero", "insert", "node", "node", "whole", "repeat"))
    position = rng.randrange(len(content) + 1)
    if kind == "flip" and content:
        position %= len(content)
        flipped = bytes([content[position] ^ (1 << rng.randrange(8))])
        return content[:position] + flipped + content[position + 1 :]
    if kind == "cut":
        return content[:position]
    if kind == "zero":
        return content[:position] + bytes(len(content) - position)
    if kind == "insert":
        return (
            content[:position]
            + rng.choice(TEXTS + NUMBERS).encode("utf-8", "replace")
            + (content[position:])
        )
    if kind == "repeat":
        return content + content
    if kind == "whole":
        return rng.choice(WHOLE)(rng)
    return _other_node(content, rng)


def _other_node(content: bytes, rng: random.Random) -> bytes:
    """JSON, JSON lines or YAML in which one value is another, gone, or has another name."""
    text = content.decode("utf-8", "replace")
    first, separator, rest = text.partition("\n")
    for read, write in (
        (lambda: json.loads(text), json.dumps),
        (lambda: json.loads(first), lambda tree: json.dumps(tree) + separator + rest),
        (lambda: yaml.safe_load(text), yaml.safe_dump),
    ):
        try:
            return write(_altered(read(), rng)).encode("utf-8", "replace")
        except (ValueError, TypeError, RecursionError, yaml.YAMLError):
            continue
    return content[::-1]


def _altered(tree: Any, rng: random.Random) -> Any:
    if isinstance(tree, (dict, list)) and tree and rng.random() < 0.85:
        key = rng.choice(list(tree)) if isinstance(tree, dict) else rng.randrange(len(tree))
        how = rng.random()
        if how < 0.1:
            del tree[key]
        elif how < 0.2 and isinstance(tree, dict):
            tree[rng.choice(TEXTS)] = tree.pop(key)
        else:
            tree[key] = _altered(tree[key], rng)
        return tree
    return rng.choice(NODES)


def _bomb() -> str:
    names = "abcdefghi"
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    lines += [
        f"{name}: &{name} [{','.join(['*' + before] * 9)}]"
        for before, name in itertools.pairwise(names)
    ]
    return "\n".join(lines)


WHOLE: tuple[Callable[[random.Random], bytes], ...] = (
    lambda rng: b"",
    lambda rng: rng.randbytes(200),
    lambda rng: b"\0" * 5000,
    lambda rng: b"[" * 100_000,
    lambda rng: b"{a: " * 3000,
    lambda rng: b'{"a":' * 50_000,
    lambda rng: _bomb().encode(),
    lambda rng: b"\xff\xfe\x00",
    lambda rng: b"\xef\xbb\xbfmodel: {}\n",
    lambda rng: json.dumps(rng.choice(NODES)).encode(),
    lambda rng: yaml.safe_dump(rng.choice(NODES)).encode(),
    lambda rng: b"model: {1: 2}\n",
    lambda rng: b"train: [1]\nmodel: 3\n",
    lambda rng: b"models: [standard, standard]\nseeds: [0, 0]\nbudget: {steps: 2}\n",
    lambda rng: b"import nothing_of_that_name\n",
    lambda rng: b"raise SystemExit(0)\n",
    lambda rng: b"raise KeyError('x')\n",
    lambda rng: b"def broken(:\n",
    lambda rng: b"\n\n\n",
    lambda rng: "😀\u2028\x1b[31m\r\n".encode() * 50,
    lambda rng: b'{"version":"1.0","model":{"type":"BPE","vocab":{"a":7},"merges":["a b"]}}',
    lambda rng: b'{"model":{"type":"WordLevel","vocab":{"a":4294967294},"unk_token":"a"}}',
    lambda rng: (1 << 62).to_bytes(8, "little") + b"{}",
    lambda rng: (2).to_bytes(8, "little") + b"{}",
)


def make_places(folder: Path) -> list[str]:
    """Paths that are not what one hopes for. Devices are behind links, so that whatever replaces a
    file replaces the link."""
    folder.mkdir()
    for name in ("zero", "full", "null", "random"):
        (folder / name).symlink_to(f"/dev/{name}")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "gone").symlink_to(folder / "absent")
    (folder / "memory").symlink_to("/proc/self/mem")
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "[red]brackets[b]").mkdir()
    (folder / "empty").touch()
    (folder / "file").write_text("x\n")
    with (folder / "sparse").open("wb") as file:
        file.truncate(1 << 42)
    (folder / "latin").write_bytes("é\n".encode("latin-1") * 200)
    found = [str(path) for path in sorted(folder.iterdir())]
    more = ("absent", "file/below", "x" * 300, "folder/a/b/c", "a\nb", "é😀", "pipe/below")
    return [*found, *(str(folder / name) for name in more)]
