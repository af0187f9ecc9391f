"""The language model: tokens -> embed -> integrate(field, x, grid) -> norm -> head -> logits.

It does not know which field, block or scheme it was given.
"""

import dataclasses
from numbers import Integral
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PRNGKeyArray

from qkvflow.blocks.base import Rows, cast_matrices, dropout, place
from qkvflow.errors import UserError
from qkvflow.fields.base import AbstractField
from qkvflow.fields.wrappers.precomputed import precompute
from qkvflow.schemes import AbstractScheme, AbstractStepScheme, stage_times
from qkvflow.schemes.base import ApplyCached, ApplyFull, Solution

MAX_LOGITS = 1 << 26
"""A quarter of a gigabyte."""


class LanguageModel(eqx.Module):
    embedding: Float[Array, "vocab d_model"]
    positions: Float[Array, "context d_model"] | None
    """Learned positions, where the blocks have none of their own."""
    field: AbstractField
    norm: AbstractField
    """The final norm, asked at t = 1."""
    head: Float[Array, "d_model vocab"] | None
    """None: tied to the embedding."""
    scheme: AbstractScheme
    num_steps: int = eqx.field(static=True)
    horizon: float = eqx.field(static=True)
    context: int = eqx.field(static=True)
    dropout: float = eqx.field(static=True, default=0.0)
    remat: str = eqx.field(static=True, default="none")
    compute_dtype: str = eqx.field(static=True, default="float32")
    max_logits: int = eqx.field(static=True, default=MAX_LOGITS)
    """Logits that a loss may hold at once."""

    @property
    def vocab_size(self) -> int:
        return self.embedding.shape[0]

    @property
    def d_model(self) -> int:
        return self.embedding.shape[1]

    def __call__(
        self, tokens: Int[Array, "*batch seq"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*batch seq vocab"]:
        """Logits of the next token at every position. With a key, dropout is on."""
        logits = self.logits(self.integrate(tokens, key=key).x)
        return logits.reshape(*tokens.shape, self.vocab_size)

    def integrate(
        self,
        tokens: Int[Array, "*batch seq"],
        *,
        key: PRNGKeyArray | None = None,
        save: bool = False,
        edges: Float[Array, " edges"] | None = None,
    ) -> Solution:
        """The depth flow of the tokens' states, as rows, with the work it took.

        `edges` are the depths where steps begin and end, if not those of the grid.
        """
        _check_ids(tokens, self.vocab_size)
        rows = _rows(tokens)
        key_embed, key_steps = (None, None) if key is None else jax.random.split(key)
        steps = None if key_steps is None else jax.random.split(key_steps, self.num_steps)
        return self.scheme.integrate(
            self.field,
            dropout(self.embed(tokens, rows), self.dropout, key_embed),
            num_steps=self.num_steps,
            horizon=self.horizon,
            make_apply=lambda key: ApplyFull(rows, key),
            per_step=steps,
            prepare=self._prepare,
            remat=self.remat,
            save=save,
            edges=edges,
        )

    def trajectory(
        self, tokens: Int[Array, "*batch seq"]
    ) -> Float[Array, "depth *batch seq d_model"]:
        """The hidden state at every depth: the embedding, then the state after each step."""
        states = self.integrate(tokens, save=True).trajectory
        assert states is not None
        return states.reshape(states.shape[0], *tokens.shape, self.d_model)

    def embed(self, tokens: Int[Array, "*batch seq"], rows: Rows) -> Float[Array, "rows d_model"]:
        x = self.embedding[tokens.reshape(-1)]
        if self.positions is None:
            return x
        if rows.seq > self.context:
            raise UserError(
                f"{rows.seq} tokens do not fit this model's {self.context} learned positions; "
                "shorten the text or train with a longer context, or positions rope or none"
            )
        here = jax.lax.dynamic_slice_in_dim(self.positions, rows.start, rows.seq)
        return (rows.unfold(x) + here[None]).reshape(x.shape)

    def logits(self, x: Float[Array, "rows d_model"]) -> Float[Array, "rows vocab"]:
        """Final norm and head, on rows."""
        return self.project(self.norm.at(1.0)(x))

    def project(self, h: Float[Array, "rows d_model"]) -> Float[Array, "rows vocab"]:
        """The head, on rows that the final norm has been applied to."""
        dtype = jnp.dtype(self.compute_dtype)
        head = self.embedding.T if self.head is None else self.head
        return jnp.dot(h.astype(dtype), head.astype(dtype), preferred_element_type=jnp.float32)

    def _prepare(self, block: Any) -> Any:
        if self.compute_dtype == "float32":
            return block
        return cast_matrices(block, jnp.dtype(self.compute_dtype))

    # Depth as a dial

    def at_depth(
        self, num_steps: int | None = None, scheme: AbstractScheme | None = None
    ) -> "LanguageModel":
        """The same weights with another number of steps or another scheme.

        The horizon stays, so it is the same flow, traversed more finely or more coarsely.
        """
        if num_steps is not None and (not isinstance(num_steps, Integral) or num_steps < 1):
            raise UserError(f"num_steps must be a whole number of at least 1, not {num_steps}")
        return dataclasses.replace(
            self, num_steps=num_steps or self.num_steps, scheme=scheme or self.scheme
        )

    # Token by token

    def precomputed(self) -> "LanguageModel":
        """The same model with its weights along depth made once, for a session of inference."""
        if not isinstance(self.scheme, AbstractStepScheme):
            return self
        times = stage_times(self.num_steps, self.scheme.stages).T
        field = precompute(self.field, list(times))
        return dataclasses.replace(
            self,
            field=dataclasses.replace(field, blocks=self._prepare(field.blocks)),
            # The final norm may be generated from t as well.
            norm=precompute(self.norm, [np.ones(1, np.float32)]),
            remat="none",
        )

    def init_caches(self, batch: int, length: int) -> Any:
        """Empty caches for `batch` sequences of at most `length` tokens."""
        if not isinstance(self.scheme, AbstractStepScheme):
            raise UserError("an adaptive scheme cannot keep caches; generate with a fixed one")
        return self.scheme.init_caches(
            self.field,
            num_steps=self.num_steps,
            batch=batch,
            length=length,
            dtype=jnp.dtype(self.compute_dtype),
        )

    def extend(
        self, tokens: Int[Array, "batch seq"], caches: Any, start: int | Int[Array, ""]
    ) -> tuple[Float[Array, "batch seq vocab"], Any]:
        """Logits of the next tokens of sequences whose first `start` tokens are in `caches`."""
        x, caches = self.advance(tokens, caches, start)
        return self.logits(x).reshape(*tokens.shape, self.vocab_size), caches

    def advance(
        self, tokens: Int[Array, "batch seq"], caches: Any, start: int | Int[Array, ""]
    ) -> tuple[Float[Array, "rows d_model"], Any]:
        """As `extend`, but the states before the final norm and head: a long prompt needs the
        logits of its last token alone."""
        rows = _rows(tokens, start)
        solution = self.scheme.integrate(
            self.field,
            self.embed(tokens, rows),
            num_steps=self.num_steps,
            horizon=self.horizon,
            make_apply=lambda states: ApplyCached(rows, states),
            per_step=caches,
            prepare=self._prepare,
        )
        new = solution.aux
        return solution.x, jax.tree.map(lambda old, each: place(old, each, start), caches, new)


def _check_ids(tokens: Int[Array, "*batch seq"], vocab_size: int) -> None:
    """Indexing clamps ids that are out of range. Within a compiled program they are not known."""
    if isinstance(tokens, Tracer) or not tokens.size:
        return
    # By NumPy: what JAX computes while a program is traced is not known, even of constants.
    ids = np.asarray(tokens)
    lowest, highest = int(ids.min()), int(ids.max())
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise UserError(
            f"token {wrong} is not in the model's vocabulary of {vocab_size}; use its tokenizer"
        )


def _rows(tokens: Int[Array, "*batch seq"], start: int | Int[Array, ""] = 0) -> Rows:
    seq = tokens.shape[-1]
    if not tokens.size:
        raise UserError(f"there are no tokens in an array of shape {tokens.shape}; give some")
    return Rows(tokens.size // seq, seq, start)
