"""The token cache: what is in it, and that half of one is never used."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from qkvflow.data import Corpus, encode_corpus, get_tokenizer, load_corpus
from qkvflow.data.cache import MANIFEST, building, is_complete
from qkvflow.data.encode import encode_split
from qkvflow.data.split import StoredSplit
from qkvflow.data.tokenizers import ByteTokenizer, CharTokenizer
from qkvflow.errors import UserError
from qkvflow.paths import cache_dir


def kept(cache: Path) -> list[Path]:
    return sorted((cache / "tokens").iterdir())


def test_tokens_are_those_of_the_documents(tiny: Corpus):
    encoded = encode_corpus(tiny, ByteTokenizer(), progress=True)
    assert encoded.train.tokens.tobytes() == b"".join(tiny.train)
    assert encoded.train.tokens.dtype == np.uint8
    assert isinstance(encoded.train.tokens, np.memmap)


def test_the_description_is_that_of_a_record(tiny: Corpus):
    described = encode_corpus(tiny, get_tokenizer("char", tiny)).describe()
    names = {"spec", "tokenizer", "tokenizer_identity", "vocab_size", "sha256", "floor", "splits"}
    assert set(described) == names
    assert set(described["splits"]) == {"train", "validation", "test"}
    test = described["splits"]["test"]
    assert set(test) == {"documents", "bytes", "characters", "tokens", "sha256"}
    assert (test["documents"], test["bytes"], test["characters"], test["tokens"]) == (1, 15, 14, 14)
    assert json.loads(json.dumps(described)) == described


def test_bits_per_byte_compare_across_tokenizers(tiny: Corpus):
    """A uniform guess over bytes is 8 bits per byte, whatever the tokens are."""
    encoded = encode_corpus(tiny, ByteTokenizer())
    assert encoded.test.bits_per_byte(math.log(256)) == pytest.approx(8)
    chars = encode_corpus(tiny, get_tokenizer("char", tiny)).test
    assert chars.bytes_per_token == 15 / 14
    total = len(chars) * 0.7
    assert chars.bits_per_byte(0.7) == pytest.approx(total / math.log(2) / 15)


def test_the_cache_is_used_and_keyed_by_text_and_tokenizer(tiny: Corpus, cache: Path):
    encode_corpus(tiny, ByteTokenizer())
    assert len(kept(cache)) == 3
    stamps = [(p / "tokens.bin").stat().st_mtime_ns for p in kept(cache)]
    encode_corpus(tiny, ByteTokenizer())
    assert [(p / "tokens.bin").stat().st_mtime_ns for p in kept(cache)] == stamps
    encode_corpus(tiny, get_tokenizer("char", tiny))
    assert len(kept(cache)) == 6
    # Another alphabet of the same size is another tokenizer.
    one = encode_split(StoredSplit.of("s", [b"abab"]), CharTokenizer("ab"))
    other = encode_split(StoredSplit.of("s", [b"abab"]), CharTokenizer("ba"))
    assert one.tokens.tolist() == [0, 1, 0, 1]
    assert other.tokens.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    "damage", ["truncate", "empty", "delete", "grow", "manifest", "no list", "alter"]
)
def test_a_damaged_cache_is_made_again(damage: str, tiny: Corpus, cache: Path):
    before = np.array(encode_corpus(tiny, ByteTokenizer()).train.tokens)
    for directory in kept(cache):
        tokens = directory / "tokens.bin"
        if damage == "truncate":
            os.truncate(tokens, tokens.stat().st_size // 2)
        elif damage == "empty":
            os.truncate(tokens, 0)
        elif damage == "delete":
            tokens.unlink()
        elif damage == "grow":
            tokens.write_bytes(tokens.read_bytes() + b"more")
        elif damage == "alter":  # At equal size.
            content = bytearray(tokens.read_bytes())
            content[0] ^= 1
            tokens.write_bytes(content)
        elif damage == "manifest":
            (directory / MANIFEST).write_text('{"tokens.b')
        else:
            (directory / MANIFEST).unlink()
        assert not is_complete(directory)
    after = encode_corpus(tiny, ByteTokenizer()).train.tokens
    assert np.array_equal(after, before)
    assert all(is_complete(directory) for directory in kept(cache))


def test_a_list_of_sizes_alone_is_one_of_an_earlier_version(tiny: Corpus, cache: Path):
    encode_corpus(tiny, ByteTokenizer())
    [directory, *_] = kept(cache)
    described = json.loads((directory / MANIFEST).read_text())
    sizes = {name: each["bytes"] for name, each in described.items()}
    (directory / MANIFEST).write_text(json.dumps(sizes))
    assert is_complete(directory)
    os.truncate(directory / "tokens.bin", 1)
    assert not is_complete(directory)


SLOW_ENCODING = """
import sys, time
from qkvflow.data import load_corpus, encode_corpus, get_tokenizer
from qkvflow.data.split import FileSplit
from qkvflow.data.tokenizers import CharTokenizer

class Slow(CharTokenizer):
    def encode(self, text):
        time.sleep(0.02)
        return CharTokenizer.encode(self, text)

chunks = FileSplit.chunks
FileSplit.chunks = lambda self, cut: chunks(self, cut, size=10_000)

corpus = load_corpus(sys.argv[1])
slow = Slow(get_tokenizer("char", corpus).alphabet)
print("start", flush=True)
encode_corpus(corpus, slow)
print("end", flush=True)
"""


@pytest.mark.parametrize("wait", [0.1, "rename"])
def test_a_killed_process_leaves_nothing_that_is_used(
    wait: float | str, tmp_path: Path, cache: Path
):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{i} line of text\n" for i in range(30_000)))
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_ENCODING, f"file:{path}"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "start\n"
    if wait == "rename":
        # The moment the first array takes its name: the others are not there yet.
        while not any(not p.name.endswith(".tmp") for p in (cache / "tokens").glob("*")):
            time.sleep(0.001)
    else:
        while not any(p.stat().st_size for p in (cache / "tokens").glob("*.tmp/tokens.bin")):
            time.sleep(0.001)
        time.sleep(float(wait))
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    assert "end" not in output
    assert process.returncode == -signal.SIGKILL
    finished = [p for p in kept(cache) if is_complete(p)]
    assert len(finished) == (1 if wait == "rename" else 0)
    assert wait == "rename" or list((cache / "tokens").glob("*.tmp/tokens.bin"))
    corpus = load_corpus(f"file:{path}")
    tokenizer = get_tokenizer("char", corpus)
    encoded = encode_corpus(corpus, tokenizer)
    assert tokenizer.decode(encoded.train.tokens).encode() == corpus.train[0]
    assert tokenizer.decode(encoded.test.tokens).encode() == corpus.test[0]


def test_leftovers_are_removed_in_the_end(cache: Path):
    target = cache / "tokens" / "key"
    old, fresh = (target.with_name(f"key.{name}.tmp") for name in ("0ld", "n3w"))
    for path in (old, fresh):
        path.mkdir(parents=True)
    os.utime(old, (0, 0))
    with building(target) as temporary:
        (temporary / "file").write_text("content")
    assert is_complete(target)
    assert fresh.exists()
    assert not old.exists()


def test_two_that_build_the_same_agree(cache: Path):
    target = cache / "key"
    with building(target) as first:
        (first / "file").write_text("content")
        with building(target) as second:
            (second / "file").write_text("content")
        assert is_complete(target)
    assert is_complete(target)
    assert [path.name for path in cache.iterdir()] == ["key"]


def test_a_failure_leaves_nothing(cache: Path):
    def fail() -> None:
        with building(cache / "key") as temporary:
            (temporary / "file").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(cache.iterdir()) == []


def test_a_full_disk_is_one_line(tiny: Corpus, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device; free some space or set QKV"):
        encode_corpus(tiny, ByteTokenizer())


def test_a_cache_that_cannot_be_made_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match=r"Not a directory.*QKVFLOW_CACHE"):
        cache_dir("tokens")
