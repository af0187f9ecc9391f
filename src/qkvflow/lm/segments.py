"""Segments: a stretch of depth with a field, a scheme, steps and a horizon of its own.

    e = the state before the segment
    x = e, zeros or noise
    x <- step_i(inject(x, e)),  i = 0 .. num_steps-1

t runs over [0, 1] within each. A model is a sequence of them: own layers first (prelude), the core,
own layers last (coda). The depth dial turns the core alone.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from qkvflow.blocks.base import AbstractNorm, Block, Rows, cast_matrices
from qkvflow.errors import UserError
from qkvflow.fields.base import AbstractField
from qkvflow.fields.parts.time import with_steps
from qkvflow.fields.wrappers.precomputed import precompute
from qkvflow.injections import AbstractInjection, NoInjection
from qkvflow.schemes import AbstractScheme, AbstractStepScheme, stage_times
from qkvflow.schemes.base import ApplyBranch, Hidden, Size, Solution

_NOISE_KEY = 0x6E6F69


def stream_std(d_model: int) -> float:
    """Of an embedding's entries at initialisation, and of noise that a core begins from.

    Logits of a normalised state then have a standard deviation of 0.32 at any width, so that the
    first loss is that of a uniform guess. At 256 wide this is the usual 0.02.
    """
    return 0.32 * d_model**-0.5


class Segment(eqx.Module):
    """A stretch of depth: its field, its scheme, its steps and its horizon."""

    field: AbstractField
    scheme: AbstractScheme
    num_steps: int = eqx.field(static=True)
    horizon: float = eqx.field(static=True)
    injection: AbstractInjection = NoInjection()
    start: str = eqx.field(static=True, default="input")
    """The first state: input (the state before the segment), zeros or noise."""
    norm: AbstractNorm | None = None
    """Of the state before the segment; None: as it comes."""

    def entered(self, e: Hidden) -> Hidden:
        """The state that the segment is given, of the one before it."""
        return e if self.norm is None else self.norm(e)

    def first(self, e: Hidden, rows: Rows, *, key: PRNGKeyArray | None = None) -> Hidden:
        """The first state. Noise is drawn from the key in training; without one it is that of the
        token's position, so that a text has one result however it is fed."""
        if self.start == "input":
            return e
        if self.start == "zeros":
            return jnp.zeros_like(e)
        std = stream_std(e.shape[-1])
        if key is not None:
            return std * jax.random.normal(key, e.shape, e.dtype)
        base = jax.random.key(_NOISE_KEY)
        keys = jax.vmap(lambda position: jax.random.fold_in(base, position))(rows.positions)
        noise = jax.vmap(lambda each: jax.random.normal(each, e.shape[-1:], e.dtype))(keys)
        return rows.fold(jnp.broadcast_to(std * noise[None], (rows.batch, *noise.shape)))

    def before(self, e: Hidden, dtype: str = "float32") -> Callable[[Hidden], Hidden] | None:
        """What is done to the state before every step."""
        if isinstance(self.injection, NoInjection):
            return None
        injection = self.injection
        if dtype != "float32":
            injection = cast_matrices(injection, jnp.dtype(dtype))
        return lambda x: injection(x, e)

    def integrate(
        self,
        e: Hidden,
        rows: Rows,
        *,
        make_apply: Callable[[Any], ApplyBranch],
        dtype: str = "float32",
        key: PRNGKeyArray | None = None,
        edges: Float[Array, " edges"] | None = None,
        **options: Any,
    ) -> Solution:
        """From the state before the segment to the one after; `key` is for noise, `dtype` for
        matrix products, the rest for `AbstractScheme.integrate`."""
        e = self.entered(e)
        return self.scheme.integrate(
            self.field if edges is None else with_steps(self.field, jnp.diff(edges)),
            self.first(e, rows, key=key),
            num_steps=self.num_steps,
            horizon=self.horizon,
            make_apply=make_apply,
            prepare=lambda block: prepared(block, dtype),
            before=self.before(e, dtype),
            edges=edges,
            **options,
        )

    def integrate_truncated(
        self,
        e: Hidden,
        rows: Rows,
        free: Int[Array, ""],
        horizon: Size,
        *,
        make_apply: Callable[[Any], ApplyBranch],
        per_step: Any = None,
        dtype: str = "float32",
        key: PRNGKeyArray | None = None,
        **options: Any,
    ) -> Solution:
        """As `integrate`, with `free` steps before the segment's own through which there is no
        gradient: a loop whose length is data, so that one program serves any number.

        t runs over [0, 1] from the first free step to the last. `horizon` is that of all steps.
        """
        total = free + self.num_steps
        first = self.first(e, rows, key=key)

        def integrate(segment: Segment, e: Hidden, x: Hidden, first: Any, steps: int, **more: Any):
            edges = ((first + jnp.arange(steps + 1)) / total).astype(jnp.float32)
            return segment.scheme.integrate(
                with_steps(segment.field, jnp.diff(edges)),
                x,
                num_steps=steps,
                horizon=horizon,
                make_apply=make_apply,
                prepare=lambda block: prepared(block, dtype),
                before=segment.before(e, dtype),
                edges=edges,
                **more,
            )

        # Nothing inside has a tangent, so that the loop need not be differentiated.
        held, given, begin = jax.tree.map(jax.lax.stop_gradient, (self, e, first))

        def body(step: Array, x: Hidden) -> Hidden:
            each = None if per_step is None else jax.random.fold_in(per_step[0], step)[None]
            return integrate(held, given, x, step, 1, per_step=each).x

        x = jax.lax.fori_loop(0, free, body, begin)
        # Where no step is free, the first state is the segment's own, with its gradient.
        x = jnp.where(free > 0, jax.lax.stop_gradient(x), first)
        return integrate(self, e, x, free, self.num_steps, per_step=per_step, **options)

    # One step at a time, for schemes that have steps

    @property
    def step_scheme(self) -> AbstractStepScheme:
        scheme = self.scheme.unwrapped
        if not isinstance(scheme, AbstractStepScheme):
            raise UserError(
                "a solver (adaptive, fixed-point) has no steps of its own; choose a fixed scheme"
            )
        return scheme

    def stacks(self) -> tuple[Block, ...]:
        """For each stage of a step, the blocks of all steps."""
        times = stage_times(self.num_steps, self.step_scheme.stages).T
        return tuple(self.field.stack(ts) for ts in times)

    def step(
        self,
        blocks: tuple[Block, ...],
        x: Hidden,
        apply: ApplyBranch,
        before: Callable[[Hidden], Hidden] | None,
    ) -> Hidden:
        """One step, with the blocks at its stages, of the scheme as `integrate` takes it."""
        size = self.horizon / self.num_steps
        begin = x if before is None else before(x).astype(x.dtype)
        return self.step_scheme.step(blocks, begin, size, apply).astype(x.dtype)

    def precomputed(self, dtype: str) -> "Segment":
        """The same segment with its weights along depth made once."""
        times = stage_times(self.num_steps, self.step_scheme.stages).T
        field = precompute(self.field, list(times))
        return dataclasses.replace(
            self, field=dataclasses.replace(field, blocks=prepared(field.blocks, dtype))
        )

    def init_caches(self, batch: int, length: int, dtype: str) -> Any:
        """Empty caches for every evaluation of every step."""
        return self.step_scheme.init_caches(
            self.field,
            num_steps=self.num_steps,
            batch=batch,
            length=length,
            dtype=jnp.dtype(dtype),
        )


def prepared(block: Any, dtype: str) -> Any:
    """A block with its matrices in the type that products run in."""
    return block if dtype == "float32" else cast_matrices(block, jnp.dtype(dtype))
