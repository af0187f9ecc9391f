"""Run analyses and save what they found: `NAME.npz` each, and `analysis.json` with the words."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkvflow.analysis.base import Analysis, Subject, to_arrays
from qkvflow.analysis.members import ANALYSES
from qkvflow.errors import UserError, unknown
from qkvflow.files import to_json, write_whole
from qkvflow.lm import LanguageModel
from qkvflow.training.rundir import writing

SUMMARY = "analysis.json"


def choose(model: LanguageModel, names: Sequence[str] | None = None) -> list[Analysis]:
    """The analyses of these names, in their order; None is all that the model can be asked."""
    if names is None:
        return [each for each in ANALYSES if each.lacks(model) is None]
    known = {each.name: each for each in ANALYSES}
    for name in names:
        if name not in known:
            raise unknown("analysis", name, known)
        if (reason := known[name].lacks(model)) is not None:
            raise UserError(f"no {name} analysis: {reason}; leave it out of --only")
    return [each for each in ANALYSES if each.name in names]


def analyse(
    subject: Subject,
    analyses: Sequence[Analysis],
    out: str | Path,
    about: Mapping[str, Any],
    tell: Callable[[str, list[str]], None] = lambda name, findings: None,
) -> Path:
    """Run each analysis and save it in `out`; returns the path of the summary.

    `about` says what was analysed, and is saved with the findings. `tell` hears each analysis'
    findings when it is done.
    """
    directory = Path(out)
    findings: dict[str, list[str]] = {}
    with writing(directory, resumable=False):
        directory.mkdir(parents=True, exist_ok=True)
        for each in analyses:
            result = each.run(subject)
            arrays = to_arrays(result)
            if "lens/tokens" in arrays:
                arrays["lens/texts"] = _texts(subject, arrays["lens/tokens"])
            memory = io.BytesIO()
            np.savez_compressed(memory, **arrays)  # pyright: ignore[reportArgumentType]
            (directory / f"{each.name}.npz").write_bytes(memory.getvalue())
            findings[each.name] = result.findings()
            tell(each.name, findings[each.name])
        summary = {
            **about,
            "tokens": subject.tokens.tolist(),
            "pieces": [subject.name_of(token) for token in subject.tokens.tolist()],
            "findings": findings,
        }
        path = directory / SUMMARY
        write_whole(path, to_json(summary, 1) + "\n")
    return path


def _texts(subject: Subject, tokens: np.ndarray) -> np.ndarray:
    """What the tokens say, so that the arrays can be read without the tokenizer."""
    named = {token: subject.name_of(token) for token in np.unique(tokens).tolist()}
    return np.array([named[token] for token in tokens.reshape(-1).tolist()]).reshape(tokens.shape)
