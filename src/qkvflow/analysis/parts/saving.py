"""Run analyses and save what they found: `NAME.npz` each, and `analysis.json` with the words."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkvflow.analysis.base import Analysis, Subject, to_arrays
from qkvflow.errors import UserError
from qkvflow.files import to_json, write_whole
from qkvflow.lm import LanguageModel
from qkvflow.runs.rundir import writing
from qkvflow.zoo.plugins import load_installed
from qkvflow.zoo.registry import ANALYSES

SUMMARY = "analysis.json"


def choose(model: LanguageModel, names: Sequence[str] | None = None) -> dict[str, Analysis]:
    """The analyses of these names, in their order; None is all that the model can be asked."""
    load_installed()
    found: dict[str, Analysis] = {}
    for name in ANALYSES if names is None else names:
        found[name] = ANALYSES[name]()
        if (reason := found[name].lacks(model)) is not None:
            if names is not None:
                raise UserError(f"no {name} analysis: {reason}; leave it out of --only")
            del found[name]
    return dict(sorted(found.items(), key=lambda each: (each[1].order, each[0])))


def analyse(
    subject: Subject,
    analyses: Mapping[str, Analysis],
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
        for name, analysis in analyses.items():
            result = analysis.run(subject)
            arrays = to_arrays(result)
            if "lens/tokens" in arrays:
                arrays["lens/texts"] = _texts(subject, arrays["lens/tokens"])
            memory = io.BytesIO()
            np.savez_compressed(memory, **arrays)  # pyright: ignore[reportArgumentType]
            (directory / f"{name}.npz").write_bytes(memory.getvalue())
            findings[name] = result.findings()
            tell(name, findings[name])
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
