"""What a kind of corpus is, and the grammar of its specification.

KIND[:BODY][?OPTION=VALUE&OPTION=VALUE...]
"""

import abc
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TypeVar

from qkvflow.data.corpus import Corpus
from qkvflow.errors import UserError, unknown

T = TypeVar("T")

# A question mark may also be part of a glob: options look like options.
_OPTIONS = re.compile(r"^(?P<head>.*)\?(?P<options>\w+=[^/?]*)$", re.DOTALL)


@dataclass(frozen=True)
class Spec:
    """A specification taken apart; `text` is what the user wrote."""

    text: str
    kind: str
    body: str
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "Spec":
        head, options = text, {}
        if match := _OPTIONS.match(text):
            head = match["head"]
            for item in match["options"].split("&"):
                name, equals, value = item.partition("=")
                if not equals:
                    raise UserError(f"'{item}' in '{text}' is not an option; write NAME=VALUE")
                options[name] = value
        kind, _, body = head.partition(":")
        return cls(text, kind, body, options)

    def allow(self, names: Collection[str]) -> None:
        """Refuse options that are none of these."""
        for name in self.options:
            if name not in names:
                raise unknown(f"option of {self.kind}:", name, names)

    def option(self, name: str, parse: Callable[[str], T], default: T) -> T:
        """An option's value, or the default."""
        if name not in self.options:
            return default
        value = self.options[name]
        try:
            return parse(value)
        except ValueError:
            kind = getattr(parse, "__name__", "value")
            raise UserError(f"{name}={value} in '{self.text}' is not a valid {kind}") from None

    def with_seed(self, seed: int) -> str:
        """The specification with its seed written out, so that it alone gives the same text."""
        if "seed" in self.options:
            return self.text
        return f"{self.text}{'&' if self.options else '?'}seed={seed}"

    def with_option(self, name: str, value: str) -> str:
        """The specification with another value of an option."""
        head = self.text.removesuffix("?" + "&".join(f"{k}={v}" for k, v in self.options.items()))
        options = {**self.options, name: value}
        return f"{head}?" + "&".join(f"{key}={each}" for key, each in options.items())

    def fractions(self, default: tuple[float, float, float]) -> tuple[float, float, float]:
        """The option `split`: the shares of train, validation and, unless empty, test."""
        text = self.options.get("split")
        if text is None:
            return default
        try:
            shares = [float(part) for part in text.split(",")]
        except ValueError:
            shares = []
        if len(shares) == 2:
            shares.append(0.0)
        if (
            len(shares) != 3
            or min(shares[:2]) <= 0
            or shares[2] < 0
            or not abs(sum(shares) - 1) <= 1e-6
        ):
            raise UserError(
                f"split={text} in '{self.text}' is not two or three positive shares that add up "
                "to 1; write e.g. split=0.9,0.05,0.05"
            )
        return shares[0], shares[1], shares[2]


class CorpusKind(abc.ABC):
    """One kind of corpus, registered by its name: what its specifications look like and how they
    are loaded."""

    usages: ClassVar[tuple[str, ...]]
    """Specifications to offer for a misspelt one, such as `file:PATH`."""

    @abc.abstractmethod
    def accepts(self, spec: Spec) -> bool:
        """Whether a specification is of this kind."""

    @abc.abstractmethod
    def load(self, spec: Spec, *, data_dir: Path | None, seed: int) -> Corpus:
        """The corpus it names."""


def refuse_data_dir(spec: Spec, data_dir: Path | None) -> None:
    """`data_dir` is where a copy of a Hugging Face dataset lies; elsewhere it means nothing."""
    if data_dir is not None:
        raise UserError(
            f"--data-dir does not apply to '{spec.text}'; use it with hf:, or write file:{data_dir}"
        )
