"""The size of a vocabulary, from the names of a corpus and a tokenizer alone: nothing is read or
downloaded, but for a `tokenizer.json` that is there."""

from qkvflow.data import load_tokenizer
from qkvflow.data.corpora import find_kind
from qkvflow.data.tokenizers import TOKENIZERS, is_path
from qkvflow.errors import UserError


def vocabulary_size(spec: str, tokenizer: str) -> int:
    """Of `byte`, `bpe:N` (N, the most it can learn) or a `tokenizer.json`."""
    find_kind(spec)  # Refuses a corpus there is not.
    if spec.startswith("source:"):
        raise UserError(f"{spec} brings its own symbols; say how many with --vocab N")
    if is_path(tokenizer):
        return load_tokenizer(tokenizer).vocab_size
    name, _, argument = tokenizer.partition(":")
    size = TOKENIZERS[name].size_of(argument)
    if size is None:
        raise UserError(
            f"the vocabulary of '{tokenizer}' is not known before the text is read; give --vocab N"
        )
    return size
