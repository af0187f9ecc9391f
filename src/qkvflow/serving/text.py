"""From tokens to what is sent: text up to a stop, and log-probabilities in the protocol's form."""

from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from qkvflow.data import Tokenizer
from qkvflow.serving.engine import Scores
from qkvflow.serving.protocol import Asked


@dataclass(frozen=True)
class Piece:
    """The next part of a choice."""

    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str | None


class Choice:
    """The text of one choice as it grows.

    What might be the beginning of a stop is held back, with the tokens it is made of.
    """

    def __init__(self, tokenizer: Tokenizer, asked: Asked, index: int):
        self.tokens = 0
        """Made so far, with the one that ended it."""
        self.finish_reason: str | None = None
        self._tokenizer, self._asked = tokenizer, asked
        self._decoder = tokenizer.stream_after(asked.prompts[index])
        self._text = asked.texts[index] if asked.echo else ""
        self._prompt = asked.prompts[index] if asked.echo else []
        self._begin = len(self._text)
        self._sent = 0
        self._entries: list[tuple[int, str, float | None, dict[str, float] | None]] = []

    def push(self, tokens: list[int], scores: Scores | None) -> Piece:
        """What can be sent after these tokens (with scores of an echoed prompt in front)."""
        row = 0
        if scores is not None and len(scores.logprobs) > len(tokens):
            decoder, place = self._tokenizer.stream(), 0
            hidden = len(self._prompt) - len(self._tokenizer.without_prefix(self._prompt))
            if self._text.startswith(self._tokenizer.decode(self._prompt[:hidden])):
                hidden = 0  # Given as ids, it is part of the text.
            for row, token in enumerate(self._prompt):
                self._enter(min(place, self._begin), token, scores, row, first=not row)
                if row >= hidden:
                    place += len(decoder.push(token))
            row = len(self._prompt)
        for index, token in enumerate(tokens):
            self.tokens += 1
            if token == self._tokenizer.separator:
                self.finish_reason = "stop"
                break
            if scores is not None:
                self._enter(len(self._text), token, scores, row + index)
            self._text += self._decoder.push(token)
            if self._stopped() or self.tokens == self._asked.max_tokens:
                break
        if self.finish_reason is None and self.tokens >= self._asked.max_tokens:
            self._text += self._decoder.finish()
            if not self._stopped():
                self.finish_reason = "length"
        return self._piece()

    def _stopped(self) -> bool:
        places = [self._text.find(stop, self._begin) for stop in self._asked.stop]
        places = [place for place in places if place >= 0]
        if places:
            self._text = self._text[: min(places)]
            self.finish_reason = "stop"
        return bool(places)

    def _piece(self) -> Piece:
        finished = self.finish_reason is not None
        ready = len(self._text) if finished else self._certain()
        text, self._sent = self._text[self._sent : ready], max(ready, self._sent)
        every = self.finish_reason == "length"
        sent = list(takewhile(lambda each: every or each[0] < ready, self._entries))
        self._entries = self._entries[len(sent) :]
        return Piece(text, self._listed(sent), self.finish_reason)

    def _certain(self) -> int:
        """How much of the text no stop can begin in."""
        for start in range(max(self._begin, self._sent), len(self._text)):
            if any(stop.startswith(self._text[start:]) for stop in self._asked.stop):
                return start
        return len(self._text)

    def _enter(self, place: int, token: int, scores: Scores, row: int, first: bool = False) -> None:
        """`first`: of the whole text, which nothing predicts."""
        logprob, top = None, None
        if not first:
            logprob = float(scores.logprobs[row])
            pairs = zip(scores.top_ids[row], scores.top_logprobs[row], strict=True)
            count = self._asked.logprobs or 0
            top = {token: logprob} | {int(i): float(p) for i, p in list(pairs)[:count]}
            ordered = sorted(top.items(), key=lambda pair: pair[1])
            # Of tokens that look alike the likelier stays.
            top = {self._tokenizer.decode([i]): p for i, p in ordered}
        self._entries.append((place, self._tokenizer.decode([token]), logprob, top))

    def _listed(self, entries: list[Any]) -> dict[str, Any] | None:
        if self._asked.logprobs is None:
            return None
        names = ("text_offset", "tokens", "token_logprobs", "top_logprobs")
        return {name: [each[at] for each in entries] for at, name in enumerate(names)}
