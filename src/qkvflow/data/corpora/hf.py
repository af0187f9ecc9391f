"""`hf:NAME[:CONFIG]`: datasets of the Hugging Face hub, or a local copy of one.

Rows are streamed once into a file of our own (text end to end, and the boundaries), so that a
dataset larger than memory needs only disk, and the next run reads it from there.

- Official splits are used where there are some. Without a validation split, one is taken from the
  train split; without a test split, one is taken from the train split, or is half of the official
  validation split. Documents are dealt out by the hash of their content, so that equal documents
  are never on both sides.
- A document is a row; rows of WikiText are lines, and an article (from its heading ` = Title = `
  to the next) is a document. A row that does not end a line gets a blank line after it.
- With a data directory, its parquet, JSON-lines or text files are read by the same library and
  the same code; their splits are told by `train`, `valid`, `test` in their names.

Options: `column` of the text, `documents` to stop after that many of the train split,
`held_out` for the same in validation and test, `split` shares where there are no official splits.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from qkvflow.data.cache import building, is_complete
from qkvflow.data.corpora.base import CorpusKind, Spec
from qkvflow.data.corpora.parts.division import DEFAULT_SHARES, Shares, share_of
from qkvflow.data.corpora.parts.local_copy import find_copy
from qkvflow.data.corpus import SPLITS, Corpus
from qkvflow.data.split import StoredSplit, Tally
from qkvflow.errors import UserError
from qkvflow.paths import cache_dir
from qkvflow.zoo.registry import CORPORA

_FORMAT = 1
_SYNONYMS = {"validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
# ` = Title = ` is an article, ` = = Title = = ` a section of one.
_ARTICLE = re.compile(r"^ = (?!= ).*(?<! =) = $")


@dataclass(frozen=True)
class Named:
    """A dataset known by a short name."""

    path: str
    config: str | None = None
    articles: bool = False
    huge: bool = False
    shares: Shares = DEFAULT_SHARES


SHORT_NAMES = {
    "wikitext-2": Named("Salesforce/wikitext", "wikitext-2-raw-v1", articles=True),
    "wikitext-103": Named("Salesforce/wikitext", "wikitext-103-raw-v1", articles=True),
    # Four million tokens are held out of nine billion: a full pass must end.
    "openwebtext": Named("Skylion007/openwebtext", shares=(0.999, 0.0005, 0.0005)),
    "c4": Named("allenai/c4", "en", huge=True),
    "pile": Named("monology/pile-uncopyrighted", huge=True),
}


@CORPORA.register("hf")
class HuggingFace(CorpusKind):
    """A dataset, streamed."""

    usages: ClassVar[tuple[str, ...]] = (
        "hf:NAME",
        *SHORT_NAMES,
    )

    def accepts(self, spec: Spec) -> bool:
        return spec.kind == "hf" or (spec.kind in SHORT_NAMES and not spec.body)

    def load(self, spec: Spec, *, data_dir: Path | None, seed: int) -> Corpus:
        spec.allow(("column", "documents", "held_out", "split"))
        body = spec.body if spec.kind == "hf" else spec.kind
        if not body:
            raise UserError(f"hf: names no dataset; write hf:NAME, e.g. hf:{min(SHORT_NAMES)}")
        path, _, config = body.partition(":")
        named = SHORT_NAMES.get(body)
        if named is None:
            articles = path.rpartition("/")[2] == "wikitext"
            named = Named(path, config or None, articles=articles)
        train_limit = spec.option("documents", _positive, 0)
        held_limit = spec.option("held_out", _positive, 0)
        if named.huge and data_dir is None and not train_limit:
            raise UserError(
                f"{body} is hundreds of gigabytes; say how many documents to take, e.g. "
                f"'{body}?documents=1000000&held_out=2000', or give a copy with --data-dir DIR"
            )
        shares = spec.fractions(named.shares)
        copy = None if data_dir is None else find_copy(data_dir, named.config)
        key = json.dumps(
            [_FORMAT, named.path, named.config, sorted(spec.options.items()), shares]
            + ([] if copy is None else [copy.fingerprint])
        )
        directory = cache_dir("corpora") / hashlib.sha256(key.encode()).hexdigest()[:32]
        if not is_complete(directory):
            streams = _open(spec, named, copy.files if copy else None, copy.format if copy else "")
            documents = {split: _documents(rows, spec, named) for split, rows in streams.items()}
            with building(directory) as temporary:
                limits = (train_limit, held_limit, held_limit)
                _store(temporary, spec, documents, shares, limits)
        train, validation, test = (_stored(directory, name, spec.text) for name in SPLITS)
        provenance = {"dataset": named.path, "config": named.config, "local": copy is not None}
        return Corpus(spec.text, train, validation, test, provenance=provenance)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _open(
    spec: Spec, named: Named, files: dict[str, list[str]] | None, format: str
) -> dict[str, Iterable[dict[str, Any]]]:
    """The splits of a dataset as streams of rows."""
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"'{spec.text}' needs the datasets library; pip install 'qkvflow[datasets]'"
        ) from None
    load: Any = datasets.load_dataset
    try:
        if files is not None:
            # A line of WikiText is a row of it; any other text file is one document.
            how = {"sample_by": "line" if named.articles else "document"}
            how = how if format == "text" else {}
            return dict(load(format, data_files=files, streaming=True, **how))
        return dict(load(named.path, named.config, streaming=True))
    except Exception as error:  # The library has dozens of errors for 'cannot be had'.
        raise _unavailable(spec, named, error) from error


def _unavailable(spec: Spec, named: Named, error: Exception) -> UserError:
    first = (str(error).splitlines() or [""])[0] or type(error).__name__
    return UserError(
        f"cannot read {named.path}: {first[:200]}; without network, download it elsewhere and "
        f"point at the copy, --data '{spec.text}' --data-dir DIR"
    )


def _documents(rows: Iterable[dict[str, Any]], spec: Spec, named: Named) -> Iterator[bytes]:
    texts = _texts(_readable(rows, spec, named), spec)
    return _articles(texts) if named.articles else map(_ended, texts)


def _readable(rows: Iterable[dict[str, Any]], spec: Spec, named: Named) -> Iterator[dict[str, Any]]:
    """Rows come over a network, or from files that may be damaged: any may fail."""
    stream = iter(rows)
    while True:
        try:
            row = next(stream)
        except StopIteration:
            return
        except Exception as error:
            raise _unavailable(spec, named, error) from error
        yield row


def _texts(rows: Iterable[dict[str, Any]], spec: Spec) -> Iterator[str]:
    column = spec.options.get("column")
    for row in rows:
        if column is None:
            column = _text_column(row, spec)
        if column not in row:
            raise UserError(
                f"'{spec.text}' has no column '{column}'; its columns: {', '.join(sorted(row))}"
            )
        text = row[column]
        if text is not None:
            yield str(text)


def _text_column(row: dict[str, Any], spec: Spec) -> str:
    for name in ("text", "content"):
        if isinstance(row.get(name), str):
            return name
    strings = [name for name, value in row.items() if isinstance(value, str)]
    if len(strings) == 1:
        return strings[0]
    raise UserError(
        f"'{spec.text}' has no column 'text'; choose one with '?column=NAME' of: "
        f"{', '.join(sorted(row))}"
    )


def _ended(text: str) -> bytes:
    return (text if text.endswith("\n") else text + "\n\n").encode()


def _articles(lines: Iterable[str]) -> Iterator[bytes]:
    """Articles out of lines: a heading between blank lines starts the next one."""
    article: list[str] = []
    for line in lines:
        line = line.rstrip("\n")
        blank_before = not article or not article[-1].strip()
        if blank_before and _ARTICLE.match(line) and any(part.strip() for part in article):
            yield _joined(article)
            article = []
        article.append(line)
    if any(part.strip() for part in article):
        yield _joined(article)


def _joined(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()


def _official(documents: dict[str, Iterator[bytes]], split: str) -> Iterator[bytes] | None:
    for name in _SYNONYMS[split]:
        if name in documents:
            return documents[name]
    return None


def _dealt(
    documents: dict[str, Iterator[bytes]], shares: Shares
) -> list[tuple[Iterator[bytes], Shares]]:
    """Streams, and the shares of each that go to train, validation and test."""
    validation, test = _official(documents, "validation"), _official(documents, "test")
    train = documents["train"]
    if validation is None and test is None:
        return [(train, shares)]
    if test is None:
        assert validation is not None
        return [(train, (1.0, 0.0, 0.0)), (validation, (0.0, 0.5, 0.5))]
    if validation is None:
        share = shares[1]
        return [(train, (1 - share, share, 0.0)), (test, (0.0, 0.0, 1.0))]
    return [(train, (1.0, 0.0, 0.0)), (validation, (0.0, 1.0, 0.0)), (test, (0.0, 0.0, 1.0))]


def _store(
    directory: Path,
    spec: Spec,
    documents: dict[str, Iterator[bytes]],
    shares: Shares,
    limits: tuple[int, int, int],
) -> None:
    if "train" not in documents:
        found = ", ".join(sorted(documents))
        raise UserError(f"'{spec.text}' has no train split, only: {found}; choose another")
    texts = [(directory / f"{name}.bin").open("wb") for name in SPLITS]
    ends = [(directory / f"{name}.ends").open("wb") for name in SPLITS]
    tallies = [Tally() for _ in SPLITS]
    try:
        for stream, given in _dealt(documents, shares):
            wanted = [part for part in range(3) if given[part]]
            for document in stream:
                part = wanted[0] if len(wanted) == 1 else share_of(document, given)
                tally = tallies[part]
                if limits[part] and tally.documents >= limits[part]:
                    # A full train split ends the stream, unless the others have limits of their
                    # own to fill: it must not be read to its end for shares nobody limited.
                    asked = (
                        [p for p in wanted if limits[p]] if 0 in wanted and limits[0] else wanted
                    )
                    if all(limits[p] and tallies[p].documents >= limits[p] for p in asked):
                        break
                    continue
                tally.begin(len(document))
                tally.add(document)
                texts[part].write(document)
                ends[part].write(tally.bytes.to_bytes(8, "little"))
    finally:
        for file in texts + ends:
            file.close()
    if not tallies[0].documents:
        raise UserError(f"'{spec.text}' has no text in its train split; choose another")
    for name, tally in zip(SPLITS, tallies, strict=True):
        totals = {
            "documents": tally.documents,
            "bytes": tally.bytes,
            "characters": tally.characters,
            "sha256": tally.sha256,
        }
        (directory / f"{name}.json").write_text(json.dumps(totals))


def _stored(directory: Path, name: str, spec: str) -> StoredSplit:
    totals = json.loads((directory / f"{name}.json").read_text())
    ends = np.fromfile(directory / f"{name}.ends", dtype="<i8")
    empty = np.zeros(0, dtype=np.uint8)
    return StoredSplit(
        name=f"{spec} ({name})",
        buffer=np.memmap(directory / f"{name}.bin", np.uint8, "r") if totals["bytes"] else empty,
        offsets=np.concatenate([np.zeros(1, dtype=np.int64), ends]),
        **totals,
    )
