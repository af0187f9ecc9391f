"""Sequences of many requests, generated in batches on one thread.

Those that wait, and are alike in depth, sampling and length, are started together; up to
`GROUPS` batches run at once, some tokens of each in turn, so that a short request does not wait
for a long one. Each sequence sees exactly what it would see alone (see `generation.decoding`), and
its text is that of `generate` with the same seed.
"""

import collections
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from qkvflow.generation import make_sampler
from qkvflow.generation.decoding import (
    AbstractDecoder,
    FullDepth,
    Part,
    Request,
    precompute,
    prepared,
    run_group,
)
from qkvflow.generation.prompts import SPAN, round_up
from qkvflow.lm import LanguageModel

GROUPS = 4
"""Batches that run at once."""
DEPTHS = 4
"""Numbers of steps whose weights are kept."""
ALTERNATIVES = 5
"""Most likely tokens that can be asked for at each place."""
_PIECE = 64


class Scores(NamedTuple):
    """Of each token, given those before it."""

    logprobs: Float[np.ndarray, " seq"]
    top_ids: Int[np.ndarray, "seq top"]
    top_logprobs: Float[np.ndarray, "seq top"]


@dataclass(eq=False)
class Sequence:
    """One text to continue, and where its tokens go."""

    prompt: list[int]
    num_tokens: int
    deliver: Callable[["Sequence", list[int], Scores | None, Exception | None], None]
    """Called on the engine's thread, with new tokens or with what went wrong."""
    num_steps: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    scored: bool = False
    echo: bool = False
    """Score the prompt as well."""
    streamed: bool = False
    new: list[int] = field(default_factory=list)
    done: bool = False
    """Nobody waits for more of it."""

    @property
    def kind(self) -> tuple[object, ...]:
        """What sequences of one batch have in common."""
        length = len(self.prompt) // SPAN
        return self.num_steps, self.temperature, self.top_p, length, self.num_tokens > 0


class Engine:
    """Generates what is submitted, until it is stopped."""

    def __init__(self, model: LanguageModel, *, batch_size: int, max_queue: int):
        self.model, self.batch_size, self.max_queue = model, batch_size, max_queue
        self._waiting: collections.deque[Sequence] = collections.deque()
        self._changed = threading.Condition()
        self._running: list[tuple[list[Sequence], Iterator[None]]] = []
        self._stopping = False
        self._models: collections.OrderedDict[int, tuple[LanguageModel, AbstractDecoder]]
        self._models = collections.OrderedDict()
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Drop what is left and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def submit(self, sequences: list[Sequence]) -> bool:
        """Queue all of them, or none if they do not fit."""
        with self._changed:
            if len(self._waiting) + len(sequences) > self.max_queue:
                return False
            self._waiting.extend(sequences)
            self._changed.notify()
        return True

    def load(self) -> dict[str, int]:
        """Sequences that wait and that run."""
        running = sum(not each.done for members, _ in list(self._running) for each in members)
        return {"waiting": len(self._waiting), "running": running}

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._running or self._stopping):
                    self._changed.wait()
                if self._stopping:
                    return
                while self._waiting and len(self._running) < GROUPS:
                    members = self._take()
                    if members:
                        self._running.append((members, self._generate(members)))
            for entry in list(self._running):
                if not self._advance(*entry):
                    self._running.remove(entry)

    def _take(self) -> list[Sequence]:
        """The longest waiting sequence, and others of its kind."""
        waiting = [each for each in self._waiting if not each.done]
        kind = waiting[0].kind if waiting else None
        members = [each for each in waiting if each.kind == kind][: self.batch_size]
        taken = set(map(id, members))
        self._waiting = collections.deque(each for each in waiting if id(each) not in taken)
        return members

    def _advance(self, members: list[Sequence], generation: Iterator[None]) -> bool:
        """Some more tokens of a batch; whether there may be others."""
        if all(each.done for each in members):
            generation.close()  # pyright: ignore[reportAttributeAccessIssue]
            return False
        try:
            next(generation)
        except StopIteration:
            return False
        except Exception as error:  # The others go on.
            for each in members:
                each.deliver(each, [], None, error)
            return False
        return True

    def _generate(self, members: list[Sequence]) -> Iterator[None]:
        first = members[0]
        model, decoder = self._at_depth(first.num_steps)
        if not first.num_tokens:
            for each in members:
                each.deliver(each, [], self._scores(model, each, 0), None)
                yield
            return
        request = Request(
            np.array([each.num_tokens for each in members]),
            make_sampler(temperature=first.temperature, top_p=first.top_p),
            np.array([each.seed for each in members], np.int32),
            at_a_time=8 if any(each.streamed for each in members) else 32,
            decoder=decoder,
            few_shapes=True,
        )
        texts = [each.prompt for each in members]
        for part in run_group(model, texts, list(range(len(texts))), request):
            self._deliver(model, members, part)
            yield

    def _deliver(self, model: LanguageModel, members: list[Sequence], part: Part) -> None:
        for each, tokens in zip(members, part.tokens, strict=True):
            if each.done or not tokens:
                continue
            known = len(each.prompt) + len(each.new) if each.new or not each.echo else 0
            each.new += tokens
            scores = self._scores(model, each, known) if each.scored else None
            each.deliver(each, tokens, scores, None)

    def _at_depth(self, num_steps: int) -> tuple[LanguageModel, AbstractDecoder]:
        if num_steps not in self._models:
            model = precompute(self.model.at_depth(num_steps))
            self._models[num_steps] = model, prepared(FullDepth(), model)
        self._models.move_to_end(num_steps)
        while len(self._models) > DEPTHS:
            self._models.popitem(last=False)
        return self._models[num_steps]

    def _scores(self, model: LanguageModel, sequence: Sequence, known: int) -> Scores:
        """Of the tokens from `known` on. The first of a text has none: it is certain."""
        text = sequence.prompt + sequence.new
        padded = np.zeros((1, round_up(len(text), _PIECE)), np.int32)
        padded[0, : len(text)] = text
        # Learned positions end with the context; what is behind the text changes nothing.
        tokens = jnp.asarray(padded[:, : max(len(text), model.context)])
        return Scores(*(np.asarray(each)[known : len(text)] for each in score(model, tokens)))


@eqx.filter_jit
def score(
    model: LanguageModel, tokens: Int[Array, "1 seq"]
) -> tuple[Float[Array, " seq"], Int[Array, "seq top"], Float[Array, "seq top"]]:
    """log p of every token but the first, and the most likely ones, a few rows at a time."""
    states, seq = model.integrate(tokens).x, tokens.shape[1]
    top = min(ALTERNATIVES, model.vocab_size)

    def one(state: Float[Array, " d_model"], token: Int[Array, ""]) -> tuple[Array, Array, Array]:
        found = jax.nn.log_softmax(model.logits(state[None])[0])
        best, ids = jax.lax.top_k(found, top)
        return found[token], ids, best

    targets = jnp.roll(tokens[0], -1)
    made = jax.lax.map(lambda row: one(*row), (states, targets), batch_size=min(_PIECE, seq))
    logprobs, ids, best = (jnp.roll(each, 1, axis=0) for each in made)
    return logprobs.at[0].set(0.0), ids, best
