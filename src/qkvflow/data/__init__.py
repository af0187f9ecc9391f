"""Text to tokens to batches: corpora, tokenizers, caches and counting baselines."""

from qkvflow.data.corpora import CORPORA, load_corpus
from qkvflow.data.corpus import SPLITS, Corpus
from qkvflow.data.encode import EncodedCorpus, TokenArray, encode_corpus, require_context
from qkvflow.data.split import Split
from qkvflow.data.tokenizers import (
    TOKENIZERS,
    ByteTokenizer,
    Tokenizer,
    get_tokenizer,
    load_tokenizer,
)

__all__ = [
    "CORPORA",
    "SPLITS",
    "TOKENIZERS",
    "ByteTokenizer",
    "Corpus",
    "EncodedCorpus",
    "Split",
    "TokenArray",
    "Tokenizer",
    "encode_corpus",
    "get_tokenizer",
    "load_corpus",
    "load_tokenizer",
    "require_context",
]
