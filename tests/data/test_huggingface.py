"""`hf:` offline: real parquet, JSON-lines and text directories through the `datasets` library."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("datasets", reason="needs the extra 'datasets'")
pq = pytest.importorskip("pyarrow.parquet")

import pyarrow as pa  # noqa: E402

from qkvflow.data import Corpus, encode_corpus, get_tokenizer, load_corpus  # noqa: E402
from qkvflow.errors import UserError  # noqa: E402

ARTICLES = {
    "train": ["Alpha", "Beta", "Gamma = 3"],
    "validation": ["Delta"],
    "test": ["Epsilon", "Zeta"],
}


def article_lines(title: str) -> list[str]:
    """Lines of WikiText, as its hub rows have them: blank lines are empty rows."""
    return [
        "",
        f" = {title} = \n",
        "",
        f" Text about {title} , with numbers @-@ 1 = 1 . \n",
        "",
        " = = Section = = \n",
        "",
        " More text . \n",
    ]


def write_parquet(path: Path, rows: list[str], column: str = "text") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({column: rows, "id": list(range(len(rows)))}), path)


def documents(corpus: Corpus) -> list[list[str]]:
    splits = (corpus.train, corpus.validation, corpus.test)
    return [[document.decode() for document in split] for split in splits]


@pytest.fixture
def wikitext(tmp_path: Path) -> Path:
    root = tmp_path / "wikitext"
    for split, titles in ARTICLES.items():
        rows = [line for title in titles for line in article_lines(title)]
        path = root / "wikitext-2-raw-v1" / f"{split}-00000-of-00001.parquet"
        write_parquet(path, rows)
        # A neighbour that must not be mixed in.
        write_parquet(root / "wikitext-103-raw-v1" / path.name, ["other"])
    return root


@pytest.mark.parametrize("spec", ["wikitext-2", "hf:wikitext-2"])
def test_an_article_is_a_document(spec: str, wikitext: Path):
    corpus = load_corpus(spec, data_dir=wikitext)
    for found, titles in zip(documents(corpus), ARTICLES.values(), strict=True):
        assert len(found) == len(titles)
        for text, title in zip(found, titles, strict=True):
            assert text.count(f" = {title} = \n") == 1
            assert text.count(" = = Section = = \n") == 1
    joined = "".join(documents(corpus)[0])
    rows = [line for title in ARTICLES["train"] for line in article_lines(title)]
    assert joined == "".join(row if row.endswith("\n") else row + "\n" for row in rows)


def test_text_files_give_the_same_articles_as_parquet(wikitext: Path, tmp_path: Path):
    root = tmp_path / "text"
    root.mkdir()
    for split, name in [("train", "train"), ("validation", "valid"), ("test", "test")]:
        rows = [line for title in ARTICLES[split] for line in article_lines(title)]
        lines = "".join(row if row.endswith("\n") else row + "\n" for row in rows)
        (root / f"wiki.{name}.raw").write_text(lines)
    parquet = load_corpus("wikitext-2", data_dir=wikitext)
    text = load_corpus("wikitext-2", data_dir=root)
    assert documents(text) == documents(parquet)
    assert text.sha256 == parquet.sha256


def test_wikitext_2_has_its_published_number_of_articles(shared_data: Path, tmp_path: Path):
    """60 in its validation file (standing in for train here) and 60 in its test file."""
    for name, source in [("train", "valid"), ("test", "test")]:
        data = (shared_data / "wikitext-2" / f"{source}.txt").read_bytes()
        (tmp_path / "copy").mkdir(exist_ok=True)
        (tmp_path / "copy" / f"{name}.txt").write_bytes(data)
    corpus = load_corpus("wikitext-2?split=0.5,0.5", data_dir=tmp_path / "copy")
    assert len(corpus.test) == 60
    assert len(corpus.train) + len(corpus.validation) == 60
    assert min(len(corpus.train), len(corpus.validation)) > 15
    assert b"".join(corpus.test) == data


def test_json_lines_in_folders_named_by_split(tmp_path: Path):
    for split in ("train", "val", "test"):
        path = tmp_path / "pile" / split / "00.jsonl"
        path.parent.mkdir(parents=True)
        rows = [{"text": f"{split} {i}", "meta": {"set": "x"}} for i in range(5)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus = load_corpus("pile", data_dir=tmp_path / "pile")
    assert documents(corpus)[0] == [f"train {i}\n\n" for i in range(5)]
    assert documents(corpus)[1] == [f"val {i}\n\n" for i in range(5)]
    assert documents(corpus)[2] == [f"test {i}\n\n" for i in range(5)]
    limited = load_corpus("pile?documents=2&held_out=1", data_dir=tmp_path / "pile")
    assert [len(split) for split in documents(limited)] == [2, 1, 1]


def test_a_dataset_without_splits_is_divided_by_content(tmp_path: Path):
    rows = [f"document {i % 500}" for i in range(1000)]  # Every document occurs twice.
    write_parquet(tmp_path / "data" / "part.parquet", rows)
    corpus = load_corpus("hf:somebody/something?split=0.8,0.1,0.1", data_dir=tmp_path / "data")
    train, validation, test = (set(split) for split in documents(corpus))
    assert not train & validation
    assert not train & test
    assert not validation & test
    assert train | validation | test == {f"{row}\n\n" for row in rows}
    assert sum(map(len, documents(corpus))) == 1000
    assert 0.05 < len(corpus.validation) / 1000 < 0.16
    two = load_corpus("hf:somebody/something?split=0.8,0.2", data_dir=tmp_path / "data")
    assert len(two.test) == 0


def test_a_limit_ends_the_stream(tmp_path: Path):
    """Rows after the last one wanted are never read: the last line here cannot be."""
    path = tmp_path / "d" / "part.jsonl"
    path.parent.mkdir()
    for shard in range(40):
        rows = [json.dumps({"text": f"document {shard} {i}"}) + "\n" for i in range(50)]
        path.with_name(f"part{shard:02}.jsonl").write_text("".join(rows))
    path.with_name("part99.jsonl").write_text('{"text": broken\n')
    sizes = {
        spec: [len(split) for split in documents(load_corpus(spec, data_dir=path.parent))]
        for spec in ("hf:x?documents=100", "hf:x?documents=100&held_out=20")
    }
    first, second = sizes.values()
    assert first[0] == 100
    assert 0 < first[1] < 20
    assert 0 < first[2] < 20
    assert second == [100, 20, 20]
    with pytest.raises(UserError, match="cannot read x"):
        load_corpus("hf:x?held_out=20", data_dir=path.parent)  # Train is wanted to its end.


def test_official_splits_are_completed_without_sharing(tmp_path: Path):
    write_parquet(tmp_path / "c4" / "en" / "train.parquet", [f"t {i}" for i in range(50)])
    write_parquet(tmp_path / "c4" / "en" / "validation.parquet", [f"v {i}" for i in range(50)])
    corpus = load_corpus("c4", data_dir=tmp_path / "c4")
    train, validation, test = documents(corpus)
    assert len(train) == 50
    assert sorted(validation + test) == sorted(f"v {i}\n\n" for i in range(50))
    assert min(len(validation), len(test)) > 10
    (tmp_path / "c4" / "en" / "validation.parquet").rename(tmp_path / "c4" / "en" / "test.parquet")
    train, validation, test = documents(load_corpus("c4", data_dir=tmp_path / "c4"))
    assert sorted(test) == sorted(f"v {i}\n\n" for i in range(50))
    assert sorted(train + validation) == sorted(f"t {i}\n\n" for i in range(50))


def test_it_is_streamed_once_and_read_from_its_own_file_after(wikitext: Path, cache: Path):
    first = load_corpus("wikitext-2", data_dir=wikitext)
    stored = list((cache / "corpora").iterdir())
    assert len(stored) == 1
    before = (stored[0] / "train.bin").stat().st_mtime_ns
    assert load_corpus("wikitext-2", data_dir=wikitext).sha256 == first.sha256
    assert (stored[0] / "train.bin").stat().st_mtime_ns == before
    (stored[0] / "train.bin").write_bytes(b"half")
    assert load_corpus("wikitext-2", data_dir=wikitext).sha256 == first.sha256
    # A changed copy is another corpus.
    path = wikitext / "wikitext-2-raw-v1" / "train-00000-of-00001.parquet"
    write_parquet(path, article_lines("Other"))
    assert load_corpus("wikitext-2", data_dir=wikitext).sha256 != first.sha256


def test_it_is_encoded_like_any_other(wikitext: Path):
    corpus = load_corpus("wikitext-2", data_dir=wikitext)
    encoded = encode_corpus(corpus, get_tokenizer("byte", corpus))
    assert encoded.train.tokens.tobytes() == b"".join(corpus.train)
    assert encoded.describe()["splits"]["train"]["documents"] == 3
    # The index of the separator after each document agrees with the documents.
    bpe = get_tokenizer("bpe:300", corpus)
    assert (encode_corpus(corpus, bpe).train.tokens == bpe.separator).sum() == 3


def test_the_column_of_the_text(tmp_path: Path):
    table = pa.table({"title": ["a", "b"], "body": ["one", "two"]})
    (tmp_path / "d").mkdir()
    pq.write_table(table, tmp_path / "d" / "train.parquet")
    with pytest.raises(UserError, match=r"choose one with '\?column=NAME' of: body, title"):
        load_corpus("hf:x", data_dir=tmp_path / "d")
    with pytest.raises(UserError, match="has no column 'bdy'"):
        load_corpus("hf:x?column=bdy", data_dir=tmp_path / "d")
    corpus = load_corpus("hf:x?column=body&split=0.5,0.5", data_dir=tmp_path / "d")
    assert sorted(documents(corpus)[0] + documents(corpus)[1]) == ["one\n\n", "two\n\n"]


def refusal(spec: str, data_dir: Path | None = None) -> str:
    with pytest.raises(UserError) as caught:
        load_corpus(spec, data_dir=data_dir)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_each_mistake_has_one_clear_line(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    assert "not a directory" in refusal("wikitext-2", tmp_path / "missing")
    assert "has no parquet, JSON-lines or text" in refusal("wikitext-2", tmp_path / "empty")
    assert "say how many documents" in refusal("c4")
    assert "names no dataset" in refusal("hf:")
    assert "not a valid" in refusal("c4?documents=0")
    (tmp_path / "empty" / "train.parquet").write_bytes(b"this is not parquet")
    assert "--data-dir" in refusal("wikitext-2", tmp_path / "empty")
    rows = tmp_path / "rows" / "train.jsonl"
    rows.parent.mkdir()
    rows.write_text('{"text": "good"}\n' * 3 + '{"text": broken\n')
    assert "cannot read somebody/rows" in refusal("hf:somebody/rows", rows.parent)
    write_parquet(tmp_path / "held" / "test.parquet", ["text"])
    assert "no train split, only: test" in refusal("hf:x", tmp_path / "held")


OFFLINE = """
from qkvflow.data import load_corpus
from qkvflow.errors import UserError
try:
    load_corpus("wikitext-2")
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize("hide", [False, True])
def test_without_network_or_library_it_says_what_to_do(
    hide: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    code = ("import sys; sys.modules['datasets'] = None\n" if hide else "") + OFFLINE
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    line = result.stdout.strip()
    assert result.returncode == 0, result.stderr
    assert line
    assert "\n" not in line
    assert ("pip install 'qkvflow[datasets]'" if hide else "--data-dir DIR") in line
