"""Corpora: one file per kind, chosen by the specification."""

from pathlib import Path

from qkvflow.data.corpora.base import CorpusKind, Spec
from qkvflow.data.corpora.files import Files
from qkvflow.data.corpora.huggingface import SHORT_NAMES, HuggingFace
from qkvflow.data.corpora.markov import Markov
from qkvflow.data.corpora.recall import Recall
from qkvflow.data.corpora.stdlib import Stdlib
from qkvflow.data.corpus import Corpus
from qkvflow.errors import UserError, unknown

__all__ = ["CORPORA", "CorpusKind", "find_kind", "load_corpus"]

CORPORA: tuple[CorpusKind, ...] = (Stdlib(), Files(), HuggingFace(), Markov(), Recall())


def load_corpus(spec: str, *, data_dir: Path | None = None, seed: int = 0) -> Corpus:
    """The corpus of a specification such as `stdlib`, `file:PATH`, `hf:NAME` or `source:markov`.

    `data_dir` is a local copy of a Hugging Face dataset; `seed` is for sources whose
    specification gives none.
    """
    return find_kind(spec).load(Spec.parse(spec), data_dir=data_dir, seed=seed)


def find_kind(spec: str) -> CorpusKind:
    """The kind of corpus that a specification names; nothing is read."""
    parsed = Spec.parse(spec)
    for kind in CORPORA:
        if kind.accepts(parsed):
            return kind
    if parsed.kind == "source":
        raise unknown("source", parsed.body, ("markov", "recall"))
    if Path(spec).exists():
        raise UserError(f"'{spec}' is a file or directory; write file:{spec}")
    known = [kind.usage for kind in CORPORA] + list(SHORT_NAMES)
    raise unknown("corpus", spec, known)
