"""The language model: tokens -> embed -> integrate segments -> norm -> head -> logits.

The segments are the prelude's, the core, and the coda's (see `segments`). What the model calls its
field, scheme, number of steps and horizon are the core's: most models have no other segment.

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

from qkvflow.blocks.attention import first_values
from qkvflow.blocks.base import Linear, Rows, dropout, place
from qkvflow.errors import UserError
from qkvflow.fields.base import AbstractField, take
from qkvflow.fields.parts.time import with_steps
from qkvflow.fields.wrappers.precomputed import precompute
from qkvflow.injections import AbstractInjection, NoInjection
from qkvflow.lm.segments import Segment, prepared
from qkvflow.schemes import AbstractScheme, AbstractStepScheme
from qkvflow.schemes.base import ApplyCached, ApplyFull, Hidden, Solution

MOST_STEPS = 1 << 16
MAX_LOGITS = 1 << 26
"""A quarter of a gigabyte."""
_START_KEY, _OTHERS_KEY = 0x737461, 0x6F7468


class LanguageModel(eqx.Module):
    """Tokens to logits: embedding, segments along depth, norm, head. Make one with `build`."""

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
    prelude: tuple[Segment, ...] = ()
    coda: tuple[Segment, ...] = ()
    injection: AbstractInjection = NoInjection()
    """Of the state before the core into every step of it."""
    core_init: str = eqx.field(static=True, default="input")
    """The core's first state: input, zeros or noise."""
    depth_dial: str = eqx.field(static=True, default="refine")
    """What another number of steps means: refine (the horizon stays) or repeat (a step's length
    does)."""
    scale_embedding: bool = eqx.field(static=True, default=False)
    """By sqrt(d_model), before positions (Vaswani et al. 2017)."""
    value_residual: bool = eqx.field(static=True, default=False)
    """Whether attention is given the first layer's values of the embedding."""
    exit_gate: Linear | None = None
    """Logit of leaving depth after a step, from what the head would read there."""
    logit_scale: float = eqx.field(static=True, default=1.0)

    @property
    def core(self) -> Segment:
        return Segment(
            self.field, self.scheme, self.num_steps, self.horizon, self.injection, self.core_init
        )

    @property
    def segments(self) -> tuple[Segment, ...]:
        """In the order they are passed."""
        return (*self.prelude, self.core, *self.coda)

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
        free: Int[Array, ""] | None = None,
    ) -> Solution:
        """The depth flow of the tokens' states, as rows, with the work it took.

        `edges` are the depths where the core's steps begin and end, if not those of the grid. What
        is saved and counted is the core's. `free` steps of the core come before its own, without a
        gradient (see `Segment.integrate_truncated`).
        """
        _check_ids(tokens, self.vocab_size)
        key_embed, key_steps = (None, None) if key is None else jax.random.split(key)
        x, rows = self.begin(tokens, key=key_embed)
        for index, segment in enumerate(self.prelude):
            x = self._pass(segment, x, rows, _fold(key_steps, index)).x
        if free is None:
            solution = self._pass(self.core, x, rows, key_steps, save=save, edges=edges)
        else:
            solution = self._truncated(x, rows, key_steps, free)
        x = self._finish(solution.x, rows, key_steps)
        return solution._replace(x=x)

    def _finish(self, x: Hidden, rows: Rows, key: PRNGKeyArray | None = None) -> Hidden:
        """The coda."""
        for index, segment in enumerate(self.coda, start=len(self.prelude)):
            x = self._pass(segment, x, rows, _fold(key, index)).x
        return x

    def _truncated(
        self, x: Hidden, rows: Rows, key: PRNGKeyArray | None, free: Int[Array, ""]
    ) -> Solution:
        horizon: Any = self.horizon
        if self.depth_dial == "repeat":
            horizon = horizon * (1.0 + free / self.num_steps)
        return self.core.integrate_truncated(
            x,
            rows,
            free,
            horizon,
            make_apply=lambda key: ApplyFull(rows, key),
            per_step=None if key is None else jax.random.split(key, self.num_steps),
            key=None if key is None else jax.random.fold_in(key, _START_KEY),
            dtype=self.compute_dtype,
            remat=self.remat,
        )

    def _pass(
        self, segment: Segment, x: Hidden, rows: Rows, key: PRNGKeyArray | None, **options: Any
    ) -> Solution:
        """Whole sequences through a segment."""
        return segment.integrate(
            x,
            rows,
            make_apply=lambda key: ApplyFull(rows, key),
            per_step=None if key is None else jax.random.split(key, segment.num_steps),
            key=None if key is None else jax.random.fold_in(key, _START_KEY),
            dtype=self.compute_dtype,
            remat=self.remat,
            **options,
        )

    def core_input(self, tokens: Int[Array, "*batch seq"]) -> Float[Array, "rows d_model"]:
        """The state before the core: the embedding, or what the prelude makes of it."""
        x, rows = self.begin(tokens)
        for segment in self.prelude:
            x = self._pass(segment, x, rows, None).x
        return x

    def read(self, x: Float[Array, "rows d_model"], rows: Rows) -> Float[Array, "rows vocab"]:
        """Logits from a state of the core, as if it were its last: coda, norm and head."""
        return self.logits(self._finish(x, rows))

    def readings(
        self,
        tokens: Int[Array, "*batch seq"],
        *,
        key: PRNGKeyArray | None = None,
        edges: Float[Array, " edges"] | None = None,
    ) -> Float[Array, "depth rows d_model"]:
        """What the head reads after every step of the core, as if it were the last."""
        states = self.integrate(tokens, key=key, save=True, edges=edges).trajectory
        assert states is not None
        norm, rows = self.norm.at(1.0), self.begin(tokens)[1]
        return jax.vmap(lambda x: norm(self._finish(x, rows, key)))(states[1:])

    def trajectory(
        self, tokens: Int[Array, "*batch seq"]
    ) -> Float[Array, "depth *batch seq d_model"]:
        """The hidden state at every depth of the core: the first, then that after each step."""
        states = self.integrate(tokens, save=True).trajectory
        assert states is not None
        return states.reshape(states.shape[0], *tokens.shape, self.d_model)

    def begin(
        self,
        tokens: Int[Array, "*batch seq"],
        start: int | Int[Array, ""] = 0,
        *,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "rows d_model"], Rows]:
        """The embedding, and what all layers are given of it beside the state."""
        rows = _rows(tokens, start)
        x = dropout(self.embed(tokens, rows), self.dropout, key)
        if self.value_residual:
            first = self.segments[0]
            block = prepared(take(first.stacks()[0], 0), self.compute_dtype)
            rows = dataclasses.replace(rows, values=first_values(block, first.entered(x), rows))
        return x, rows

    def embed(self, tokens: Int[Array, "*batch seq"], rows: Rows) -> Float[Array, "rows d_model"]:
        """The state before the first step: embedded tokens, and learned positions if any."""
        x = self.embedding[tokens.reshape(-1)]
        if self.scale_embedding:
            x = self.d_model**0.5 * x
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
        h = h if self.logit_scale == 1.0 else h * self.logit_scale
        return jnp.dot(h.astype(dtype), head.astype(dtype), preferred_element_type=jnp.float32)

    # Depth as a dial

    def at_depth(
        self, num_steps: int | None = None, scheme: AbstractScheme | None = None
    ) -> "LanguageModel":
        """The same weights with another number of steps or another scheme.

        With `refine` the horizon stays, so it is the same flow, traversed more finely or more
        coarsely; with `repeat` the length of a step does. Prelude and coda stay as they are.
        """
        if num_steps is not None and (not isinstance(num_steps, Integral) or num_steps < 1):
            raise UserError(f"num_steps must be a whole number of at least 1, not {num_steps}")
        if num_steps is not None and num_steps > MOST_STEPS:
            raise UserError(f"num_steps can be at most {MOST_STEPS:,}, not {num_steps}")
        steps, horizon = num_steps or self.num_steps, self.horizon
        if self.depth_dial == "repeat":
            horizon *= steps / self.num_steps
        return dataclasses.replace(
            self,
            field=with_steps(self.field, 1.0 / steps),
            num_steps=steps,
            horizon=horizon,
            scheme=scheme or self.scheme,
        )

    # Token by token

    def precomputed(self) -> "LanguageModel":
        """The same model with its weights along depth made once, for a session of inference."""
        if not self._has_steps:
            return self
        return dataclasses.replace(
            self,
            field=self.core.precomputed(self.compute_dtype).field,
            prelude=tuple(each.precomputed(self.compute_dtype) for each in self.prelude),
            coda=tuple(each.precomputed(self.compute_dtype) for each in self.coda),
            # The final norm may be generated from t as well.
            norm=precompute(self.norm, [np.ones(1, np.float32)]),
            remat="none",
        )

    @property
    def _has_steps(self) -> bool:
        return all(isinstance(each.scheme, AbstractStepScheme) for each in self.segments)

    def init_caches(self, batch: int, length: int) -> tuple[Any, ...]:
        """Empty caches of every segment, for `batch` sequences of at most `length` tokens."""
        if not self._has_steps:
            raise UserError(
                "a solver (adaptive, fixed-point) cannot keep caches; use a fixed scheme"
            )
        dtype = self.compute_dtype
        return tuple(each.init_caches(batch, length, dtype) for each in self.segments)

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
        (x, rows), new = self.begin(tokens, start), []
        for segment, old in zip(self.segments, caches, strict=True):
            x, slots = self.append(segment, x, rows, old)
            new.append(placed(old, slots, start))
        return x, tuple(new)

    def append(
        self, segment: Segment, x: Float[Array, "rows d_model"], rows: Rows, caches: Any
    ) -> tuple[Float[Array, "rows d_model"], Any]:
        """The next tokens through one segment, and what is to be `placed` in its caches."""
        solution = segment.integrate(
            x,
            rows,
            make_apply=lambda states: ApplyCached(rows, states),
            per_step=caches,
            dtype=self.compute_dtype,
        )
        return solution.x, solution.aux


def placed(caches: Any, new: Any, start: int | Int[Array, ""]) -> Any:
    """Caches with the new slots in place."""
    return jax.tree.map(lambda old, each: place(old, each, start), caches, new)


def _fold(key: PRNGKeyArray | None, index: int) -> PRNGKeyArray | None:
    """A key of a segment beside the core's own."""
    return None if key is None else jax.random.fold_in(jax.random.fold_in(key, _OTHERS_KEY), index)


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
