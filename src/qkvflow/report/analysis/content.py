"""The saved files of an analysis: `analysis.json` and one `.npz` for each part."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkvflow.errors import UserError

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Content:
    summary: dict[str, Any]
    parts: dict[str, Arrays]

    @property
    def pieces(self) -> tuple[str, ...]:
        """The text, token by token."""
        return tuple(self.summary["pieces"])

    def arrays(self, name: str) -> Arrays:
        return self.parts[name]

    def groups(self, name: str, under: str) -> dict[str, Arrays]:
        """`circuits/QK/eigenvalues` as {"QK": {"eigenvalues": ..}}, in the order of the file."""
        found: dict[str, Arrays] = {}
        for key, array in self.parts[name].items():
            top, _, rest = key.partition("/")
            if top == under:
                group, _, leaf = rest.partition("/")
                found.setdefault(group, {})[leaf] = array
        return found


def read(directory: Path) -> Content:
    path = directory / "analysis.json"
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        parts = {}
        for name in summary["findings"]:
            with np.load(directory / f"{name}.npz", allow_pickle=False) as file:
                parts[name] = {key: file[key] for key in file.files}
    except (OSError, ValueError, KeyError):
        raise UserError(f"{directory} holds no whole analysis; run qkvflow analyze again") from None
    return Content(summary, parts)
