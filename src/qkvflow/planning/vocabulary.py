"""The size of a vocabulary, from the names of a corpus and a tokenizer alone: nothing is read or
downloaded, but for a `tokenizer.json` that is there."""

from pathlib import Path

from qkvflow.data import ByteTokenizer, load_tokenizer
from qkvflow.data.corpora import find_kind
from qkvflow.errors import UserError, unknown


def vocabulary_size(spec: str, tokenizer: str) -> int:
    """Of `byte`, `bpe:N` (N, the most it can learn) or a `tokenizer.json`."""
    find_kind(spec)  # Refuses a corpus there is not.
    if spec.startswith("source:"):
        raise UserError(f"{spec} brings its own symbols; say how many with --vocab N")
    if tokenizer == "byte":
        return ByteTokenizer().vocab_size
    size = tokenizer.removeprefix("bpe:")
    if size != tokenizer and size.isdecimal():
        return int(size)
    if tokenizer == "char":
        raise UserError("how many characters a text has is not known before; give --vocab N")
    if tokenizer.endswith(".json") or Path(tokenizer).exists():
        return load_tokenizer(tokenizer).vocab_size
    raise unknown("tokenizer", tokenizer, ("byte", "char", "bpe:N", "PATH/tokenizer.json"))
