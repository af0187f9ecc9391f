"""A session: sequences that are fed and continued as one goes, forward and back.

    session = Session(model, batch=1, length=256)
    logits = session.feed(prompt)
    token = session.sample()
    session.feed(token[:, None])
    session.at(5)

Going back costs one token where caches are positional (attention). A recurrent state is a
summary and cannot be taken apart: `at` starts from the last snapshot before that place,
or from nothing, and feeds what lies between again.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from qkvflow.errors import UserError
from qkvflow.generation.caches import check_caches, copy_recurrent, is_recurrent, put_recurrent
from qkvflow.generation.decoding import precompute
from qkvflow.generation.sampling import Sampler, make_sampler, sequence_keys, token_keys
from qkvflow.lm import LanguageModel

Tokens = Int[Array, "batch seq"] | Int[np.ndarray, "batch seq"]


@eqx.filter_jit(donate="all-except-first")
def extend(
    fixed: tuple[LanguageModel, Int[Array, "batch seq"], Int[Array, ""]], caches: Any
) -> tuple[Float[Array, "batch seq vocab"], Any]:
    model, tokens, start = fixed
    return model.extend(tokens, caches, start)


class Session:
    """`batch` sequences of at most `length` tokens, all at the same position."""

    def __init__(
        self,
        model: LanguageModel,
        batch: int,
        length: int,
        *,
        sampler: Sampler | None = None,
        seed: int = 0,
    ):
        if batch < 1 or length < 1:
            raise UserError(f"batch {batch} and length {length} must be at least 1")
        if model.positions is not None and length > model.context:
            raise UserError(
                f"{length} tokens do not fit this model's {model.context} learned positions"
            )
        check_caches(model, batch, length)
        self.model = precompute(model)
        self.batch, self.length = batch, length
        self.sampler = make_sampler() if sampler is None else sampler
        self.position = 0
        """Tokens so far."""
        self.logits: Float[Array, "batch vocab"] | None = None
        """Of the next token."""
        self._keys = sequence_keys(seed, jnp.arange(batch))
        self._tokens = np.zeros((batch, length), np.int32)
        self._caches = self.model.init_caches(batch, length)
        self._recurrent = is_recurrent(self.model)
        self._snapshots: dict[int, list[Any]] = {}

    @property
    def tokens(self) -> Int[np.ndarray, "batch seq"]:
        """What has been fed."""
        return self._tokens[:, : self.position].copy()

    def feed(self, tokens: Tokens) -> Float[Array, "batch vocab"]:
        """Go on with these tokens; returns the logits of what comes after the last."""
        return self.score(tokens)[:, -1]

    def score(self, tokens: Tokens) -> Float[Array, "batch seq vocab"]:
        """As `feed`, with the logits after every one of the tokens."""
        given = np.asarray(tokens)
        seq = given.shape[1]
        if given.shape[0] != self.batch or seq < 1:
            raise UserError(f"feed {self.batch} sequences of at least 1 token, not {given.shape}")
        if given.min() < 0 or given.max() >= self.model.vocab_size:
            raise UserError(f"tokens must be in the vocabulary of {self.model.vocab_size}")
        if self.position + seq > self.length:
            raise UserError(
                f"{seq} more tokens after {self.position} do not fit the session's {self.length}"
            )
        self._tokens[:, self.position : self.position + seq] = given
        start = jnp.int32(self.position)
        fixed = (self.model, jnp.asarray(given, jnp.int32), start)
        logits, self._caches = extend(fixed, self._caches)
        self.position += seq
        self.logits = logits[:, -1]
        return logits

    def sample(self) -> Int[Array, " batch"]:
        """Draw the next tokens; the same at the same position. They are not fed."""
        if self.logits is None:
            raise UserError("there is nothing to draw from yet; feed at least one token")
        return self.sampler(self.logits, token_keys(self._keys, jnp.int32(self.position)))

    def snapshot(self) -> None:
        """Remember the recurrent state here, for a quick return. Nothing to do for attention."""
        if self._recurrent:
            self._snapshots[self.position] = copy_recurrent(self.model, self._caches)

    def at(self, position: int) -> "Session":
        """Go back to when `position` tokens had been fed; returns the session itself."""
        if not 0 <= position <= self.position:
            raise UserError(f"the session is at {self.position} and cannot go back to {position}")
        if position == self.position:
            return self
        # The last token is fed again, because its logits were not kept.
        start = max(position - 1, 0)
        if self._recurrent:
            self._snapshots = {at: kept for at, kept in self._snapshots.items() if at <= position}
            start = max((at for at in self._snapshots if at <= start), default=0)
            self._caches = self._state(start)
        again = self._tokens[:, start:position].copy()
        self.position, self.logits = start, None
        if position > start:
            self.feed(again)
        return self

    def _state(self, position: int) -> Any:
        if position in self._snapshots:
            return put_recurrent(self.model, self._caches, self._snapshots[position])
        return jax.tree.map(jnp.zeros_like, self._caches)
