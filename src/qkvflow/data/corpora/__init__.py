"""Corpora: one file per kind, chosen by the specification."""

from pathlib import Path

from qkvflow.data.corpora.base import CorpusKind, Spec
from qkvflow.data.corpus import Corpus
from qkvflow.errors import UserError, unknown
from qkvflow.zoo.plugins import load_installed
from qkvflow.zoo.registry import CORPORA

__all__ = ["CORPORA", "CorpusKind", "Spec", "find_kind", "load_corpus"]


def load_corpus(spec: str, *, data_dir: Path | None = None, seed: int = 0) -> Corpus:
    """The corpus of a specification such as `stdlib`, `file:PATH`, `hf:NAME` or `source:markov`.

    `data_dir` is a local copy of a Hugging Face dataset; `seed` is for sources whose
    specification gives none.
    """
    return find_kind(spec).load(Spec.parse(spec), data_dir=data_dir, seed=seed)


def find_kind(spec: str) -> CorpusKind:
    """The kind of corpus that a specification names; nothing is read."""
    parsed = Spec.parse(spec)
    name = parsed.body if parsed.kind == "source" else parsed.kind
    if name in CORPORA and (kind := CORPORA[name]()).accepts(parsed):
        return kind
    load_installed()
    # A kind may have names for single corpora: `wikitext-2` is one of hf.
    kinds: list[CorpusKind] = [make() for make in CORPORA.values()]
    for kind in kinds:
        if kind.accepts(parsed):
            return kind
    usages = [usage for kind in kinds for usage in kind.usages]
    if parsed.kind == "source":
        sources = (usage.partition(":") for usage in usages)
        raise unknown(
            "source", parsed.body, [body for head, _, body in sources if head == "source"]
        )
    if Path(spec).exists():
        raise UserError(f"'{spec}' is a file or directory; write file:{spec}")
    raise unknown("corpus", spec, usages)
