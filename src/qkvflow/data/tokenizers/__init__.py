"""Tokenizers: one file per member, chosen by name."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from qkvflow.data.tokenizers.base import TextStream, Tokenizer
from qkvflow.data.tokenizers.byte import ByteTokenizer
from qkvflow.data.tokenizers.char import CharTokenizer
from qkvflow.data.tokenizers.subword import SubwordTokenizer, read_subword, train_bpe
from qkvflow.errors import UserError, unknown

if TYPE_CHECKING:
    from qkvflow.data.corpus import Corpus

__all__ = [
    "TOKENIZERS",
    "ByteTokenizer",
    "CharTokenizer",
    "SubwordTokenizer",
    "TextStream",
    "Tokenizer",
    "get_tokenizer",
    "load_tokenizer",
]

TOKENIZERS: tuple[type[Tokenizer], ...] = (ByteTokenizer, CharTokenizer, SubwordTokenizer)


def get_tokenizer(spec: str, corpus: "Corpus") -> Tokenizer:
    """The tokenizer of a name: `byte`, `char`, `bpe:N`, or the path of a `tokenizer.json`.

    A source brings its own alphabet, whose ids its floor is counted in: `byte` (the default),
    `char` and `source` all mean that alphabet, and anything else is refused.
    """
    if corpus.tokenizer is not None:
        if spec not in ("byte", "char", "source"):
            raise UserError(
                f"{corpus.spec} brings its own tokens and tokenizer '{spec}' does not apply; "
                "leave the tokenizer out"
            )
        return corpus.tokenizer
    if spec == "byte":
        return ByteTokenizer()
    if spec == "char":
        return CharTokenizer.of(corpus.train, (corpus.validation, corpus.test))
    if spec.startswith("bpe:") or spec == "bpe":
        size = spec.partition(":")[2]
        if not size.isdecimal():
            raise UserError(f"tokenizer '{spec}' has no vocabulary size; write e.g. bpe:4096")
        return train_bpe(corpus.train, int(size))
    if spec.endswith(".json") or Path(spec).exists():
        return load_tokenizer(Path(spec))
    raise unknown("tokenizer", spec, ("byte", "char", "bpe:N", "PATH/tokenizer.json"))


def load_tokenizer(path: Path | str) -> Tokenizer:
    """Read a `tokenizer.json`, one of ours or of the `tokenizers` library, or a directory's."""
    path = Path(path)
    if path.is_dir():
        path = path / "tokenizer.json"
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(f"no tokenizer at {path}; give the path of a tokenizer.json") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a tokenizer.json: {error}; export it again") from None
    kind = content.get("qkvflow") if isinstance(content, dict) else None
    if kind is None:
        return read_subword(path)
    if kind == "byte":
        return ByteTokenizer()
    alphabet, has_unknown = content.get("alphabet"), content.get("unknown")
    if (
        kind == "char"
        and isinstance(alphabet, str)
        and isinstance(has_unknown, bool)
        and 0 < len(set(alphabet)) == len(alphabet)
    ):
        name = str(content.get("name", "char"))
        return CharTokenizer(alphabet, unknown=has_unknown, name=name)
    raise UserError(f"{path} is not a tokenizer.json of this version; export it again")
