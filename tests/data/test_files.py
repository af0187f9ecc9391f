"""`file:` and `stdlib`: what is read, how it is divided, and what is refused."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from qkvflow.data import Corpus, Split, encode_corpus, get_tokenizer, load_corpus, require_context
from qkvflow.data.corpora.parts.division import divide_files
from qkvflow.errors import UserError


def whole(split: Split) -> bytes:
    return b"".join(split)


def splits(corpus: Corpus) -> tuple[bytes, bytes, bytes]:
    return whole(corpus.train), whole(corpus.validation), whole(corpus.test)


def refusal(spec: str, **options) -> str:
    with pytest.raises(UserError) as caught:
        load_corpus(spec, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes("".join(f"line {i} €\n" for i in range(1000)).encode())
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(400):
        path = tmp_path / "folder" / f"part{i % 7}" / f"{i}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"document {i}\n" * 20)
    return tmp_path / "folder"


def test_one_file_is_divided_by_position(text: Path):
    corpus = load_corpus(f"file:{text}")
    data = text.read_bytes()
    train, validation, test = splits(corpus)
    assert train + validation + test == data
    assert abs(len(train) - 0.9 * len(data)) < 4
    assert abs(len(validation) - 0.05 * len(data)) < 4
    for part in (train, validation, test):
        part.decode("utf-8")
    assert corpus.train.documents == 1
    assert corpus.train.bytes == len(train)
    assert corpus.train.characters == len(train.decode())


def test_two_shares_leave_the_test_split_empty(text: Path):
    corpus = load_corpus(f"file:{text}?split=0.8,0.2")
    train, validation, test = splits(corpus)
    assert train + validation == text.read_bytes()
    assert test == b""
    assert corpus.test.documents == 0
    encoded = encode_corpus(corpus, get_tokenizer("byte", corpus))
    assert len(encoded.test) == 0


def test_every_cut_falls_between_characters(tmp_path: Path):
    path = tmp_path / "wide.txt"
    for repeat in range(10, 50):
        data = ("a€🙂é" * repeat).encode()
        path.write_bytes(data)
        parts = splits(load_corpus(f"file:{path}"))
        assert b"".join(parts) == data
        assert "".join(part.decode() for part in parts) == data.decode()


def test_a_directory_is_divided_by_whole_files(folder: Path):
    corpus = load_corpus(f"file:{folder}")
    documents = [set(corpus.train), set(corpus.validation), set(corpus.test)]
    files = {path.read_bytes() for path in folder.rglob("*.txt")}
    assert documents[0] | documents[1] | documents[2] == files
    assert sum(len(d) for d in documents) == len(files) == 400
    assert 0.03 < len(documents[1]) / 400 < 0.08
    assert 0.03 < len(documents[2]) / 400 < 0.08


def test_adding_a_file_moves_no_other(folder: Path):
    before = load_corpus(f"file:{folder}")
    (folder / "another.txt").write_text("one more\n")
    after = load_corpus(f"file:{folder}")
    assert set(before.validation) <= set(after.validation)
    assert set(before.test) <= set(after.test)
    assert set(before.train) <= set(after.train)


def test_few_or_uneven_files_fill_every_split():
    assert sorted(divide_files("abc", [5, 5, 5], (0.9, 0.05, 0.05))) == [0, 1, 2]
    for large in range(6):
        sizes = [10] * 6
        sizes[large] = 10_000
        parts = divide_files([str(i) for i in range(6)], sizes, (0.9, 0.05, 0.05))
        assert set(parts) == {0, 1, 2}
        assert parts[large] == 0, "the one large file belongs to train"


def test_hidden_empty_and_binary_files_are_left_out(folder: Path):
    before = load_corpus(f"file:{folder}").sha256
    (folder / ".hidden").write_text("hidden")
    (folder / "empty.txt").write_bytes(b"")
    (folder / "image.bin").write_bytes(b"\x89PNG\0\0")
    assert load_corpus(f"file:{folder}").sha256 == before


def test_a_glob_takes_what_matches(folder: Path):
    corpus = load_corpus(f"file:{folder}/part3/*.txt")
    assert sum(map(len, (corpus.train, corpus.validation, corpus.test))) == 57
    one = load_corpus(f"file:{folder}/part?/35?.txt?split=0.8,0.2")
    assert len(one.train) + len(one.validation) == 10


def test_named_splits_and_parts_of_a_file(text: Path, tmp_path: Path):
    other = tmp_path / "other.txt"
    other.write_bytes("€".encode() * 1001)
    corpus = load_corpus(f"file:train={text},validation={other}[:0.5],test={other}[0.5:]")
    train, validation, test = splits(corpus)
    assert train == text.read_bytes()
    assert validation + test == other.read_bytes()
    assert len(validation) == 1500
    assert "shares" not in refusal(f"file:train={text},validation={text}[0.5:]")
    assert "in both train and validation" in refusal(f"file:train={text},validation={text}[0.5:]")
    assert "in both" in refusal(f"file:train={text},validation={other}[:0.6],test={other}[0.5:]")
    assert "no validation split" in refusal(f"file:train={text}")
    assert "not a part" in refusal(f"file:train={text},validation={other}[0.7:0.2]")
    assert "twice" in refusal(f"file:train={text},train={other}")


def test_the_hash_follows_content_and_boundaries(tmp_path: Path):
    def corpus_of(*contents: str) -> str:
        for i, content in enumerate(contents):
            (tmp_path / f"{i}.txt").write_text(content)
        return load_corpus(f"file:{tmp_path}/*.txt").sha256

    first = corpus_of("aa\n", "b\n", "c\n")
    assert corpus_of("aa\n", "b\n", "c\n") == first
    assert corpus_of("aa\n", "b\n", "d\n") != first
    assert corpus_of("a", "a\nb\n", "c\n") != first


def test_stdlib_is_large_deterministic_and_free_of_tests():
    corpus = load_corpus("stdlib")
    sizes = [split.bytes for split in (corpus.train, corpus.validation, corpus.test)]
    total = sum(sizes)
    assert total > 4_000_000
    assert 0.03 < sizes[1] / total < 0.08
    assert 0.03 < sizes[2] / total < 0.08
    assert corpus.provenance["python"] == platform.python_version()
    assert corpus.spec == "stdlib"
    names = [s.origin(i)[0] for s in (corpus.train, corpus.validation) for i in range(len(s))]
    assert "argparse.py" in names or "ast.py" in names
    for name in names:
        folders = name.split("/")[:-1]
        assert not {"test", "tests", "site-packages", "idle_test"} & set(folders), name
        assert not name.startswith("_sysconfigdata")
    command = "from qkvflow.data import load_corpus; print(load_corpus('stdlib').sha256)"
    again = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    )
    assert again.stdout.strip() == corpus.sha256


def test_each_mistake_has_one_clear_line(tmp_path: Path):
    empty = tmp_path / "empty.txt"
    empty.touch()
    bare = tmp_path / "bare"
    bare.mkdir()
    assert "no file" in refusal(f"file:{tmp_path}/missing.txt")
    assert "is empty" in refusal(f"file:{empty}")
    assert "no text files" in refusal(f"file:{bare}")
    assert "no text files match" in refusal(f"file:{tmp_path}/*.md")
    assert "names no file" in refusal("file:")
    assert "did you mean stdlib" in refusal("stdlb")
    assert "did you mean wikitext-2" in refusal("wikitex-2")
    assert "did you mean markov" in refusal("source:markow")
    assert f"write file:{empty}" in refusal(str(empty))
    assert "did you mean split" in refusal(f"file:{empty}?splt=0.9,0.1")
    for split in ("0.9", "0.9,0.2", "1,0", "a,b", "0.5,0.2,0.2,0.1", "nan,nan"):
        assert "add up to 1" in refusal(f"stdlib?split={split}"), split
    assert "--data-dir does not apply" in refusal("stdlib", data_dir=tmp_path)
    (bare / "a.txt").write_text("some text")
    (bare / "b.txt").write_text("some text")
    assert "too few for 3 splits" in refusal(f"file:{bare}")
    assert len(load_corpus(f"file:{bare}?split=0.5,0.5").validation) == 1


def test_a_corpus_shorter_than_one_context_is_refused(tmp_path: Path):
    path = tmp_path / "short.txt"
    path.write_text("x" * 100)
    corpus = load_corpus(f"file:{path}")
    encoded = encode_corpus(corpus, get_tokenizer("byte", corpus))
    require_context(encoded, 89)
    with pytest.raises(UserError, match="90 train tokens, fewer than one context of 90"):
        require_context(encoded, 90)
    path.write_text("x" * 10)
    corpus = load_corpus(f"file:{path}")
    with pytest.raises(UserError, match="nothing to predict"):
        require_context(encode_corpus(corpus, get_tokenizer("byte", corpus)), 4)


def test_an_unreadable_text_is_named(text: Path):
    corpus = load_corpus(f"file:{text}")
    text.write_bytes(b"shorter now")
    with pytest.raises(UserError, match="became shorter"):
        encode_corpus(corpus, get_tokenizer("byte", corpus))
