"""Tokenizers: one file per member, chosen by name."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from qkvflow.data.tokenizers.base import TextStream, Tokenizer
from qkvflow.data.tokenizers.byte import ByteTokenizer
from qkvflow.data.tokenizers.char import CharTokenizer
from qkvflow.errors import UnknownName, UserError, one_line
from qkvflow.zoo.registry import TOKENIZERS

if TYPE_CHECKING:
    from qkvflow.data.corpus import Corpus

__all__ = [
    "TOKENIZERS",
    "ByteTokenizer",
    "CharTokenizer",
    "TextStream",
    "Tokenizer",
    "check_tokenizer",
    "get_tokenizer",
    "is_path",
    "load_tokenizer",
]


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
    if is_path(spec):
        return load_tokenizer(Path(spec))
    name, _, argument = spec.partition(":")
    return TOKENIZERS[name].fit(argument, corpus)


def is_path(spec: str) -> bool:
    """Whether a tokenizer is given by a file, not by its name."""
    named = spec.partition(":")[0] in TOKENIZERS
    return not named and (spec.endswith(".json") or Path(spec).exists())


def check_tokenizer(spec: str) -> None:
    """Refuse a name that is of no tokenizer."""
    name = spec.partition(":")[0]
    if name != "source" and not is_path(spec):
        TOKENIZERS.check(name)


def load_tokenizer(path: Path | str) -> Tokenizer:
    """Read a `tokenizer.json`, one of ours or of the `tokenizers` library, or a directory's."""
    path = Path(path)
    if path.is_dir():
        path = path / "tokenizer.json"
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(f"no tokenizer at {path}; give the path of a tokenizer.json") from None
    except (OSError, ValueError, RecursionError) as error:
        why = "it is no text" if isinstance(error, UnicodeDecodeError) else one_line(error, 160)
        raise UserError(f"{path} is not a tokenizer.json: {why}; export it again") from None
    kind = content.get("qkvflow") if isinstance(content, dict) else None
    if not isinstance(kind, str):
        from qkvflow.data.tokenizers.bpe import read_subword

        return read_subword(path, content)
    try:
        return TOKENIZERS[kind].read(content)
    except UnknownName as error:
        raise UserError(f"{path}: {error.what}; give the --plugin that registers it") from None
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{path} is not a tokenizer.json of this version; export it again"
        ) from None
