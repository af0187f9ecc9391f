"""The text of a run: its corpus as tokens, and single splits for a trained model."""

import warnings
from pathlib import Path

from qkvflow.data import (
    SPLITS,
    EncodedCorpus,
    TokenArray,
    encode_corpus,
    get_tokenizer,
    load_corpus,
    require_context,
)
from qkvflow.data.corpus import Corpus
from qkvflow.data.encode import encode_split
from qkvflow.errors import Note, UserError, unknown
from qkvflow.runs.config import RunConfig
from qkvflow.runs.load import Trained
from qkvflow.runs.sections import PRETRAINED


def load_data(config: RunConfig) -> EncodedCorpus:
    """The corpus of a configuration as tokens, checked against its context."""
    data = config.data
    directory = None if data.dir is None else Path(data.dir)
    corpus = load_corpus(data.spec, data_dir=directory, seed=data.seed)
    encoded = encode_corpus(corpus, get_tokenizer(data.tokenizer, corpus), progress=True)
    require_context(encoded, config.context)
    return encoded


def load_split(
    trained: Trained, split: str, *, spec: str | None = None, data_dir: str | None = None
) -> tuple[TokenArray, float | None]:
    """A split of the run's own corpus, or of another, in the model's tokens; and the floor."""
    tokens, corpus = load_part(trained, split, spec=spec, data_dir=data_dir)
    return tokens, corpus.floor


def load_part(
    trained: Trained, split: str, *, spec: str | None = None, data_dir: str | None = None
) -> tuple[TokenArray, Corpus]:
    """As `load_split`, and the corpus it is of."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    data = trained.config.data
    if spec is None and data.spec == PRETRAINED:
        raise UserError("the text of an imported model is not known; name one with --data")
    where = data_dir or (data.dir if spec is None else None)
    directory = None if where is None else Path(where)
    corpus = load_corpus(spec or data.spec, data_dir=directory, seed=data.seed)
    was = trained.corpus_sha256
    if spec is None and was is not None and was != corpus.sha256:
        warnings.warn(
            f"the text of '{corpus.spec}' has changed since this model was trained (sha256 "
            f"{was[:12]}, now {corpus.sha256[:12]}): this is not the split it "
            "was trained beside; restore the text, or name another with --data",
            Note,
            stacklevel=2,
        )
    tokens = encode_split(getattr(corpus, split), trained.tokenizer)
    if len(tokens) < 2:
        raise UserError(f"'{corpus.spec}' has no {split} split to speak of; choose another --split")
    return tokens, corpus
